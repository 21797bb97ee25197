"""What the ranks of a communicator know each other by."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from slurmmesh.errors import UsageError
from slurmmesh.gpu.library import load

BYTES = 128


@dataclass(frozen=True)
class CommunicatorId:
    """What makes processes the ranks of one communicator; see ``new``. It travels by pickle.

    Whoever has it can join: give it to the ranks only.

    Attributes:
        name: for errors and logs.
        data: the library's unique id.
    """

    name: str
    data: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise UsageError(f"a communicator has a name, not {self.name!r}")
        if type(self.data) is not bytes or len(self.data) != BYTES:
            raise UsageError(f"a communicator's id has {BYTES} bytes")

    @classmethod
    def new(cls, name: str = "world") -> CommunicatorId:
        """A new id, for one communicator. The process that makes it must live until all are in.

        That is the controller, as a rule; no device is needed for it. Ranks connect to it at an
        address that the library chooses: ``NCCL_SOCKET_IFNAME`` names the interface.

        Raises:
            GpuUnavailable, GpuUnsupported: there is no library for collectives.
            GpuError: it found no address.
        """
        library = load()
        data = library.ffi.new("unsigned char[]", BYTES)
        library.call("sm_ccl_unique_id", data)
        return cls(name, bytes(library.ffi.buffer(data)))

    @property
    def key(self) -> bytes:
        """16 bytes that tell communicators apart, and do not let anybody join."""
        return hashlib.sha256(
            self.name.encode(errors="surrogatepass") + b"\0" + self.data
        ).digest()[:16]


def key_of_part(key: bytes, how: str) -> bytes:
    """The key of a communicator that is made from one with this key, by all ranks alike."""
    return hashlib.sha256(key + how.encode()).digest()[:16]

"""Device memory on its way to another process: what it is in plain data, and descriptors.

Over a stream of a unix socket an export is a length (8 bytes, big-endian), that many bytes of JSON,
and one byte for every 253 descriptors, which come with it.
"""

from __future__ import annotations

import array
import contextlib
import json
import os
import socket
import struct
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from slurmmesh.errors import FrameError, LinkClosed, UsageError

MAX_DESCRIPTORS = 253
"""That one message of a unix socket can carry (the kernel's SCM_MAX_FD)."""
MAX_DESCRIPTION = 1 << 20
"""Bytes of a description that are accepted from a peer."""
_LENGTH = struct.Struct(">Q")


@dataclass(frozen=True)
class MemoryDescription:
    """What another process must know of device memory, besides its descriptors. Plain data.

    Attributes:
        platform: ``rocm`` or ``cuda``.
        device: uuid of the device that it is memory of.
        extents: bytes of each part of the memory, in order; each has a descriptor.
        rdma: made for a NIC to reach.
    """

    platform: str
    device: str
    extents: tuple[int, ...]
    rdma: bool = False

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Any) -> MemoryDescription:
        """From what ``to_dict`` made, perhaps by somebody else.

        Raises:
            FrameError: it is no such thing.
        """
        if not isinstance(data, Mapping):
            raise FrameError("what was received is no description of device memory")
        fields = dict(data)
        extents = fields.pop("extents", None)
        kinds = {"platform": str, "device": str, "rdma": bool}
        fine = (
            fields.keys() == kinds.keys()
            and all(type(fields[name]) is kind for name, kind in kinds.items())
            and isinstance(extents, (list, tuple))
            and all(type(size) is int and size > 0 for size in extents)
            and 0 < sum(extents) < 1 << 63
        )
        if not fine:
            raise FrameError(f"no description of device memory: {str(data)[:200]}")
        return cls(**fields, extents=tuple(extents or ()))


class ExportedMemory:
    """Device memory as it can be given to another process; see ``DeviceMemory.export``.

    The descriptors are closed at the end of ``with``, by ``close()``, or with the last reference.
    Whoever has imported the memory keeps it without them.

    Attributes:
        description: the rest, in plain data.
        fds: a descriptor for each extent. ``fds[i]`` is memory of ``description.extents[i]`` bytes.
    """

    def __init__(self, description: MemoryDescription, fds: tuple[int, ...]) -> None:
        self.description = description
        self.fds = fds
        self._closing = weakref.finalize(self, _close_all, fds)
        if len(fds) != len(description.extents):
            self._closing()
            raise FrameError(
                f"{len(fds)} descriptors came for {len(description.extents)} extents of memory"
            )

    def close(self) -> None:
        """Close the descriptors. A second time does nothing."""
        self._closing()

    @property
    def closed(self) -> bool:
        return not self._closing.alive

    def __enter__(self) -> ExportedMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise UsageError("descriptors do not travel by pickle, and have one owner: send() it")

    def __repr__(self) -> str:
        state = ", closed" if self.closed else ""
        return f"<ExportedMemory {self.description}{state}>"

    def send(self, connection: socket.socket) -> None:
        """Send it to whoever receives it at the other end of a unix socket (``receive``).

        The descriptors stay open here. After any error the socket is of no more use.

        Raises:
            UsageError: it was closed, or the socket is not a stream of AF_UNIX that blocks.
            LinkClosed: the other end is gone.
        """
        if self.closed:
            raise UsageError("this export was closed: export the memory again")
        _check(connection)
        text = json.dumps(self.description.to_dict()).encode()
        try:
            connection.sendall(_LENGTH.pack(len(text)) + text)
            for batch in _batches(self.fds):
                socket.send_fds(connection, [b"\0"], list(batch))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise LinkClosed(f"nobody receives the memory that is exported: {error}") from error

    @classmethod
    def receive(cls, connection: socket.socket) -> ExportedMemory:
        """What ``send`` sent. The peer must be one that you trust: it may be of the same user.

        After any error the socket is of no more use.

        Raises:
            UsageError: the socket is not a stream of AF_UNIX that blocks.
            FrameError: what came is something else, or descriptors were lost.
            LinkClosed: the other end is gone.
        """
        _check(connection)
        (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size))
        if length > MAX_DESCRIPTION:
            raise FrameError(f"a description of device memory of {length} bytes is none")
        try:
            data = json.loads(_exactly(connection, length))
        except (ValueError, RecursionError) as error:
            raise FrameError(f"no description of device memory: {error}") from error
        description = MemoryDescription.from_dict(data)
        fds: list[int] = []
        try:
            while len(fds) < len(description.extents):
                fds += _receive_batch(connection)
        except BaseException:
            _close_all(fds)
            raise
        return cls(description, tuple(fds))


def _check(connection: socket.socket) -> None:
    if connection.family != socket.AF_UNIX or connection.type != socket.SOCK_STREAM:
        raise UsageError("descriptors travel over a stream of AF_UNIX only")
    if connection.gettimeout() == 0:
        raise UsageError("the socket does not block: setblocking(True), or settimeout()")


def _batches(fds: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    for start in range(0, len(fds), MAX_DESCRIPTORS):
        yield fds[start : start + MAX_DESCRIPTORS]


def _exactly(connection: socket.socket, size: int) -> bytes:
    """So many bytes; descriptors that come with them are dropped by the kernel."""
    parts = []
    while size:
        try:
            part = connection.recv(size)
        except ConnectionResetError:
            part = b""
        if not part:
            raise LinkClosed("whoever was to send device memory has closed the socket")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _receive_batch(connection: socket.socket) -> list[int]:
    """The descriptors of one byte, at least one."""
    numbers = array.array("i")
    room = socket.CMSG_SPACE(MAX_DESCRIPTORS * numbers.itemsize)
    try:
        said, ancillary, flags, _ = connection.recvmsg(1, room, socket.MSG_CMSG_CLOEXEC)
    except ConnectionResetError:
        raise LinkClosed("whoever was to send device memory has closed the socket") from None
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data[: len(data) - len(data) % numbers.itemsize])
    fds = numbers.tolist()
    if said and fds and not flags & socket.MSG_CTRUNC:
        return fds
    _close_all(fds)
    if not said:
        raise LinkClosed("whoever was to send device memory has closed the socket")
    raise FrameError(
        "descriptors of device memory were lost on the way; if this process is at its limit of "
        "open files, raise that (ulimit -n)"
    )


def _close_all(fds: tuple[int, ...] | list[int]) -> None:
    for fd in fds:
        with contextlib.suppress(OSError):  # closed by somebody else: the others are ours still
            os.close(fd)

"""Who is measured: ours, other actor runtimes, and the floor."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Session(Protocol):
    """A program of one runtime, as all are driven alike. Each peer's file has one.

    Making one gets all ready to spawn; ``transport`` is ``unix`` or ``tcp``.
    """

    def __init__(self, transport: str) -> None: ...

    def spawn(self, procs: int, torch: bool) -> None:
        """Start procs with an actor in each, with torch imported or not, and await a call to all.

        What follows is about them, or about the first of them.
        """

    def pids(self) -> Sequence[int]:
        """Of the procs."""

    def call_one(self) -> None:
        """Call an endpoint that does nothing, and await the answer."""

    async def await_one(self) -> None:
        """The same from a coroutine."""

    def call_all(self) -> None:
        """Call all actors at once, and await all answers."""

    def burst(self, actors: int, calls: int) -> None:
        """Call the first ``actors`` in turns, and only then await all answers."""

    def cast(self, messages: int) -> None:
        """Send messages that are not answered, then await the answer of one call."""

    def send(self, tensor: Any) -> None:
        """Call with a tensor, of which the actor reads each page, and await the answer."""

    def keep(self, elements: int) -> None:
        """Have the actor make a float32 tensor, for ``fetch``."""

    def fetch(self) -> Any:
        """The tensor that the actor keeps."""

    def fail(self) -> Exception | None:
        """Call an endpoint that raises; gives what was raised here."""

    def stop(self) -> None:
        """End the procs in order."""

    def close(self) -> None:
        """End all that it started, the procs too."""


@dataclass(frozen=True)
class Peer:
    """One of them.

    Attributes:
        distribution: what has to be installed, if anything.
        imports: what a program that uses actors imports.
        transports: how a session can reach its procs.
    """

    name: str
    distribution: str
    imports: str
    transports: tuple[str, ...]

    @property
    def version(self) -> str:
        """Of what is installed; empty if it is not."""
        try:
            return importlib.metadata.version(self.distribution) if self.distribution else "-"
        except importlib.metadata.PackageNotFoundError:
            return ""

    def load(self) -> type[Session]:
        """Import it; gives what its sessions are made of."""
        loaded: type[Session] = importlib.import_module(f"{__package__}.{self.name}").Session
        return loaded


OURS = Peer(
    "ours",
    "",
    "import slurmmesh as sm; sm.Actor, sm.endpoint, sm.local_hosts",
    ("unix", "tcp"),
)
PEERS = (
    Peer(
        "monarch",
        "torchmonarch",
        "from monarch.actor import Actor, endpoint, this_host",
        ("unix", "tcp"),
    ),
    Peer("ray", "ray", "import ray", ("unix",)),
    Peer("floor", "", "import pickle, select, socket", ("unix", "tcp")),
)
ALL = {peer.name: peer for peer in (OURS, *PEERS)}

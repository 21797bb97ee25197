"""The processes that the ranks of a communicator are, and whether they live."""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from slurmmesh.errors import UsageError
from slurmmesh.gpu import progress

State = Literal["dead", "stopped", "alive"]


@dataclass(frozen=True)
class Peer:
    """The process that is a rank; each makes its own by ``this_peer`` and it travels by pickle.

    Attributes:
        host: name of its host, for texts.
        started: its start time, in the kernel's ticks; a later process with its pid has another.
        machine: the kernel and the space of pids that the pid belongs to.
        board: descriptor, in that process, of the page that tells how far it is.
    """

    rank: int
    host: str
    pid: int
    started: int
    machine: str
    board: int

    @property
    def here(self) -> bool:
        """Its pid can be looked up by this process."""
        return self.machine == _machine()

    @property
    def state(self) -> State:
        """Of one that is here."""
        found = _stat(self.pid)
        if found is None or found[1] != self.started or found[0] in "ZX":
            return "dead"
        return "stopped" if found[0] in "Tt" else "alive"

    def __str__(self) -> str:
        return f"rank {self.rank} (pid {self.pid} on {self.host})"


def this_peer(rank: int) -> Peer:
    """This process as a rank. The program gathers those of all ranks, for ``Communicator(peers=)``.

    Raises:
        UsageError: it is no rank.
    """
    if type(rank) is not int or rank < 0:
        raise UsageError(f"{rank!r} is no rank")
    pid = os.getpid()
    found = _stat(pid)
    started = found[1] if found else 0
    return Peer(rank, socket.gethostname(), pid, started, _machine(), progress.own_board().fd)


def peers_by_rank(peers: Any) -> dict[int, Peer]:
    """Peers, checked.

    Raises:
        UsageError: they are none, or two are of one rank.
    """
    found: dict[int, Peer] = {}
    for peer in peers if isinstance(peers, Iterable) else (peers,):
        if not isinstance(peer, Peer):
            raise UsageError(f"peers={peers!r}: they are what this_peer(rank) made in each rank")
        if found.setdefault(peer.rank, peer) != peer:
            raise UsageError(f"two peers are of one rank: {found[peer.rank]} and {peer}")
    return found


@functools.lru_cache(maxsize=1)
def _machine() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot} {os.readlink('/proc/self/ns/pid')}"


def _stat(pid: int) -> tuple[str, int] | None:
    """State and start time of a process; None: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return fields[0], int(fields[19])

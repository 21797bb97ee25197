"""The meshes of a job and their ranks, the hosts it lost and its failures, folded from events.

Pure, and as wary of what it reads as :mod:`slurmmesh.telemetry.history`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slurmmesh.telemetry import fields
from slurmmesh.telemetry.events import Event

# A list in a broken line must not make a view hold that many ranks.
_MOST_RANKS = 1_000_000


@dataclass
class Rank:
    """One rank of a mesh.

    Attributes:
        state: ``starting``, ``up``, ``restarting``, ``failed`` (given up), ``dead`` (nobody starts
            it again) or ``ended`` (in order).
        restarts: how often it was started again.
    """

    host: str = ""
    state: str = "starting"
    pid: int | None = None
    restarts: int = 0


@dataclass
class Mesh:
    """One mesh of processes; ``sizes`` is its extent, empty if the log does not tell."""

    name: str
    sizes: dict[str, int] = field(default_factory=dict)
    supervised: bool = False
    ranks: dict[int, Rank] = field(default_factory=dict)

    def count(self) -> Counter[str]:
        """How many ranks are in which state."""
        return Counter(rank.state for rank in self.ranks.values())


@dataclass
class Failure:
    """The unexpected end of a process.

    Attributes:
        cause: how it ended and why, in words.
        back_s: seconds until the rank had a process again; None while it has none.
    """

    t: float
    mesh: str
    rank: int | None
    host: str
    pid: int | None
    cause: str
    back_s: float | None = None


@dataclass
class LostHost:
    """A host whose link broke, or that fell silent."""

    t: float
    name: str
    cause: str


@dataclass
class MeshHistory:
    """Feed it the events of a job with :meth:`add`. A new start of the job begins anew."""

    meshes: list[Mesh] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    lost_hosts: list[LostHost] = field(default_factory=list)
    _down: dict[tuple[str, int], Failure] = field(default_factory=dict)

    def add(self, event: Event) -> None:
        """Fold in one event. Never raises: what cannot be understood is left out."""
        t, kind = fields.time(event.get("t")), event.get("kind")
        teller = _KINDS.get(kind) if isinstance(kind, str) else None
        if t is not None and teller is not None:
            teller(self, t, event)

    def _job_started(self, t: float, event: Event) -> None:
        self.meshes.clear()
        self.failures.clear()
        self.lost_hosts.clear()
        self._down.clear()

    def _job_ended(self, t: float, event: Event) -> None:
        for mesh in self.meshes:
            for rank in mesh.ranks.values():
                if rank.state in ("starting", "up", "restarting"):
                    rank.state = "ended"

    def _host_lost(self, t: float, event: Event) -> None:
        name = fields.text(event.get("name")) or f"{fields.integer(event.get('host'))}"
        self.lost_hosts.append(LostHost(t, name, fields.text(event.get("cause"))))

    def _spawned(self, t: float, event: Event) -> None:
        mesh = Mesh(
            fields.text(event.get("mesh")),
            _sizes(event.get("sizes")),
            event.get("supervised") is True,
        )
        ranks, hosts = event.get("ranks"), event.get("hosts")
        names = hosts if isinstance(hosts, list) else []
        for position, value in enumerate(ranks[:_MOST_RANKS] if isinstance(ranks, list) else []):
            rank = fields.count(value)
            if rank is not None:
                host = fields.text(names[position]) if position < len(names) else ""
                mesh.ranks[rank] = Rank(host)
        self.meshes.append(mesh)

    def _up(self, t: float, event: Event) -> None:
        mesh, number = self._mesh(event), fields.count(event.get("rank"))
        if number is None:
            return
        rank = mesh.ranks.setdefault(number, Rank())
        rank.state, rank.pid = "up", fields.integer(event.get("pid"))
        rank.host = fields.text(event.get("host")) or rank.host
        rank.restarts = fields.count(event.get("incarnation")) or 0
        failure = self._down.pop((mesh.name, number), None)
        if failure is not None:
            failure.back_s = max(0.0, t - failure.t)

    def _exited(self, t: float, event: Event) -> None:
        number, pid = fields.count(event.get("rank")), fields.integer(event.get("pid"))
        mesh = self._mesh(event, pid)
        rank = mesh.ranks.get(number) if number is not None else None
        expected = event.get("expected") is True
        if rank is not None and rank.state != "failed":
            rank.state = "ended" if expected else "restarting" if mesh.supervised else "dead"
        if expected:
            return
        host = fields.text(event.get("host"))
        failure = Failure(t, mesh.name, number, host, pid, _cause(event))
        self.failures.append(failure)
        if number is not None:
            self._down[mesh.name, number] = failure

    def _given_up(self, t: float, event: Event) -> None:
        mesh, ranks = self._mesh(event), event.get("ranks")
        for value in ranks if isinstance(ranks, list) else []:
            number = fields.count(value)
            rank = None if number is None else mesh.ranks.get(number)
            if rank is not None and rank.state != "ended":
                rank.state = "failed"

    def _mesh(self, event: Event, pid: int | None = None) -> Mesh:
        """The mesh an event names: of several with one name that with the process, else the last.

        One that was never told of is made.
        """
        name, number = fields.text(event.get("mesh")), fields.count(event.get("rank"))
        named = [mesh for mesh in self.meshes if mesh.name == name]
        if pid is not None and number is not None:
            for mesh in named:
                own = mesh.ranks.get(number)
                if own is not None and own.pid == pid:
                    return mesh
        if not named:
            self.meshes.append(Mesh(name))
            return self.meshes[-1]
        return named[-1]


_KINDS: dict[str, Callable[[MeshHistory, float, Event], None]] = {
    "job_started": MeshHistory._job_started,
    "job_ended": MeshHistory._job_ended,
    "host_lost": MeshHistory._host_lost,
    "procs_spawned": MeshHistory._spawned,
    "proc_up": MeshHistory._up,
    "proc_exited": MeshHistory._exited,
    "ranks_given_up": MeshHistory._given_up,
}


def _sizes(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    sizes = {fields.text(label): fields.count(size) for label, size in value.items()}
    return {label: size for label, size in sizes.items() if size is not None}


def _cause(event: Event) -> str:
    signal, code = fields.signal_name(event.get("signal")), fields.integer(event.get("exit_code"))
    detail = fields.text(event.get("detail")).strip()
    if signal:
        how = f"killed by {signal}"
    elif code is not None:
        how = f"exited with code {code}"
    else:
        how = "lost"
    return f"{how}: {detail}" if detail else how

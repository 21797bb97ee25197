"""The supervisor of one mesh: Erlang's rules, with ranks for children.

Pure: events and the time go in, actions come out. It starts and ends nothing itself, so the
same code runs against real processes and in virtual time.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from slurmmesh.errors import ExitCause, UsageError
from slurmmesh.supervision.actions import Action, Escalate, KillRanks, RestartRanks
from slurmmesh.supervision.events import Event, HostDown, ProcExited, ProcUp
from slurmmesh.supervision.intensity import FailureWindow
from slurmmesh.supervision.spec import Supervision


class _State(enum.Enum):
    STARTING = enum.auto()  # start ordered, not ready yet
    UP = enum.auto()
    ENDING = enum.auto()  # its end is ordered, it may still run
    DOWN = enum.auto()  # ended; restarted when all ranks of its wave are
    ENDED = enum.auto()  # not to come back: ended on an order that was not ours, or has no place


_RUNNING = (_State.STARTING, _State.UP)
_GONE = (_State.DOWN, _State.ENDED)


@dataclass
class _Rank:
    state: _State = _State.STARTING
    host: str = ""
    pid: int = 0
    incarnation: int = 0


class MeshSupervisor:
    """Decides what happens when ranks of one mesh die.

    A failure opens a *wave*: the ranks to be restarted for it. Those of them that still run
    are ended first, the last first; when none runs any more, all are started, the first first.
    Deaths among them meanwhile belong to the wave. A death outside (possible with
    ``rest_for_one``) widens it and counts as another failure.

    Ranks lost with their host have no place to be started again. With ``one_for_one`` they are
    given up and the others go on; with the other strategies the mesh is given up with them.

    Args:
        spec: the rules; None for a mesh that is not supervised, whose deaths have no
            consequence.
        mesh: its name, for actions and reports.
        size: its number of ranks; all are taken as starting.
    """

    def __init__(self, spec: Supervision | None, mesh: str, size: int) -> None:
        if size < 1:
            raise UsageError(f"mesh {mesh!r} must have at least one rank, not {size}")
        self.spec = spec
        self.mesh = mesh
        self.size = size
        self._ranks = [_Rank() for _ in range(size)]
        self._wave: set[int] = set()
        self._window = FailureWindow(spec.within_s if spec else 0.0)
        self._incarnation = 0
        self._stopping = False
        self._escalated = False

    @property
    def ended(self) -> bool:
        """Whether nothing will be restarted any more: stopped, or given up."""
        return self._stopping or self._escalated

    def incarnation_of(self, rank: int) -> int:
        """The number of the restart that made the present process of a rank."""
        return self._ranks[rank].incarnation

    def stopping(self) -> None:
        """The mesh is being stopped: from here on nothing is restarted, ended or given up."""
        self._stopping = True
        self._wave.clear()

    def handle(self, event: Event, now: float) -> list[Action]:
        """What to do about an event. ``now``: seconds of a clock that never goes back.

        Raises UsageError if the event names another mesh or a rank that does not exist.
        """
        if isinstance(event, ProcUp):
            self._on_up(event)
            return []
        if isinstance(event, ProcExited):
            return self._on_exit(event, now)
        return self._on_host_down(event)

    def _on_up(self, event: ProcUp) -> None:
        rank = self._rank(event.rank)
        if event.incarnation != rank.incarnation or rank.state in _GONE:
            return
        rank.host, rank.pid = event.host, event.pid
        if rank.state is _State.STARTING:
            rank.state = _State.UP

    def _on_exit(self, event: ProcExited, now: float) -> list[Action]:
        cause = event.cause
        rank = self._rank_of(cause)
        if rank.state in _GONE or _is_stale(event, rank):
            return []
        expected = event.expected or (self._stopping and cause.exit_code == 0)
        if expected and rank.state in _RUNNING:
            rank.state = _State.ENDED
            return []
        rank.state = _State.DOWN
        return self._mend([] if expected else [cause], now)

    def _on_host_down(self, event: HostDown) -> list[Action]:
        lost = [(cause, self._rank_of(cause)) for cause in event.causes]
        causes = tuple(cause for cause, rank in lost if rank.state is not _State.ENDED)
        for _, rank in lost:
            rank.state = _State.ENDED
        if self.spec is None or self.ended or not causes:
            return []
        if self.spec.strategy != "one_for_one":
            return self._give_up(causes, _lost(self.mesh, causes))
        ranks = tuple(cause.rank for cause in causes)
        return [Escalate(self.mesh, ranks, causes, _lost(self.mesh, causes))]

    def _mend(self, causes: list[ExitCause], now: float) -> list[Action]:
        """After ranks went down, ``causes`` of their own accord: what the strategy asks for."""
        if self.spec is None or self.ended:
            return []
        actions: list[Action] = []
        outside = [cause.rank for cause in causes if cause.rank not in self._wave]
        if outside:
            failures = self._window.add(now)
            self._window.note(causes)
            if failures > self.spec.max_restarts:
                return self._give_up(
                    self._window.causes,
                    f"mesh {self.mesh!r} failed {failures} times within {self.spec.within_s:g} s, "
                    f"where {self.spec.max_restarts} restarts are allowed; "
                    f"last: {causes[-1].describe()}",
                )
            self._wave.update(self._affected(outside))
            actions += self._end(self._wave)
        else:
            self._window.note(causes)
        if self._wave and all(self._ranks[number].state in _GONE for number in self._wave):
            self._window.mended(now)
            actions.append(self._restart())
        return actions

    def _affected(self, dead: list[int]) -> Iterable[int]:
        assert self.spec is not None
        if self.spec.strategy == "one_for_one":
            return dead
        first = 0 if self.spec.strategy == "one_for_all" else min(dead)
        alive = range(first, self.size)
        return [number for number in alive if self._ranks[number].state is not _State.ENDED]

    def _end(self, numbers: Iterable[int]) -> list[Action]:
        running = sorted((n for n in numbers if self._ranks[n].state in _RUNNING), reverse=True)
        for number in running:
            self._ranks[number].state = _State.ENDING
        return [KillRanks(self.mesh, tuple(running))] if running else []

    def _restart(self) -> Action:
        self._incarnation += 1
        numbers = tuple(sorted(self._wave))
        self._wave.clear()
        for number in numbers:
            self._ranks[number] = _Rank(incarnation=self._incarnation)
        return RestartRanks(self.mesh, numbers, self._incarnation)

    def _give_up(self, causes: tuple[ExitCause, ...], reason: str) -> list[Action]:
        self._escalated = True
        self._wave.clear()
        everyone = tuple(range(self.size))
        return [*self._end(everyone), Escalate(self.mesh, everyone, causes, reason)]

    def _rank_of(self, cause: ExitCause) -> _Rank:
        if cause.mesh != self.mesh:
            raise UsageError(f"mesh {self.mesh!r} was told of a death in {cause.mesh!r}")
        return self._rank(cause.rank)

    def _rank(self, number: int) -> _Rank:
        if not 0 <= number < self.size:
            raise UsageError(f"mesh {self.mesh!r} has no rank {number}, it has {self.size}")
        return self._ranks[number]


def _is_stale(event: ProcExited, rank: _Rank) -> bool:
    """Whether this is late news of a process that was replaced already."""
    if event.incarnation is not None and event.incarnation != rank.incarnation:
        return True
    return bool(rank.pid and event.cause.pid and rank.pid != event.cause.pid)


def _lost(mesh: str, causes: tuple[ExitCause, ...]) -> str:
    ranks = ", ".join(str(cause.rank) for cause in causes)
    return f"mesh {mesh!r} has lost rank {ranks} with its host: {causes[-1].describe()}"

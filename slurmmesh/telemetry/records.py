"""What a history is made of: plain records of one training run and of the job around it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import NamedTuple

from slurmmesh.telemetry.phases import PHASES, durations


class Step(NamedTuple):
    """One step a replica committed. ``step`` is the number of committed steps after it."""

    t: float
    step: int
    loss: float | None
    participants: int | None
    quorum: int | None
    participating: bool
    duration_s: float | None


class InnerStep(NamedTuple):
    """One local step of DiLoCo, between two committed ones. ``loss`` may be NaN."""

    t: float
    step: int
    inner: int
    loss: float


class Fault(NamedTuple):
    """One injected fault; ``t`` is just before it was fired. ``pid`` is the victim's."""

    t: float
    kind: str
    replica: int | None
    mesh: str
    rank: int | None
    host: str
    pid: int | None


class SkippedFault(NamedTuple):
    """A fault that was planned and not fired, and why."""

    t: float
    kind: str
    replica: int | None
    reason: str


class ProcExit(NamedTuple):
    """The end of one process, as its host saw it; ``signal`` is its name, empty for none."""

    t: float
    mesh: str
    rank: int | None
    host: str
    pid: int | None
    signal: str
    exit_code: int | None
    detail: str
    stderr: str
    expected: bool


class Quorum(NamedTuple):
    """A replica's entry into a quorum."""

    t: float
    replica: int | None
    quorum: int | None
    participants: int | None
    step: int | None
    healed_from: int | None


@dataclass
class Recovery:
    """The way of one replica from its death back to a committed step.

    Attributes:
        times: phase → seconds since the epoch, for the phases seen so far.
        reported: durations as the recovering side measured them, in seconds, by name.
        complete: whether the replica took its first step again.
    """

    id: int
    replica: int | None
    times: dict[str, float] = field(default_factory=dict)
    reported: dict[str, float] = field(default_factory=dict)
    signal: str = ""
    steps_lost: int | None = None
    complete: bool = False

    def duration(self, name: str) -> float | None:
        """Seconds of one of ``DURATIONS``, or of ``total_s``; None where unknown.

        The reported figure wins.
        """
        return self.reported.get(name, durations(self.times).get(name))

    @property
    def phase(self) -> str:
        """The last phase reached; empty before the first."""
        reached = [phase for phase in PHASES if phase in self.times]
        return reached[-1] if reached else ""


@dataclass
class Replica:
    """One replica's series and present state.

    Attributes:
        state: ``starting``, ``training``, ``healing`` (commits without taking part), ``down``,
            a phase of a recovery in work (``detected`` … ``healed``), or ``finished``.
        steps: its committed steps, as they arrived.
        not_committed: steps it tried and did not commit.
    """

    index: int
    steps: list[Step] = field(default_factory=list)
    inner: list[InnerStep] = field(default_factory=list)
    not_committed: int = 0
    deaths: int = 0
    finished_at: float | None = None
    state: str = "starting"
    state_t: float = -math.inf

    def become(self, state: str, t: float) -> None:
        """Take a state, unless something later is known already."""
        if t >= self.state_t:
            self.state, self.state_t = state, t


@dataclass
class Host:
    """A host as the controller knows it."""

    index: int
    name: str
    address: str
    up: bool = True


@dataclass
class Run:
    """One training run: from ``run_started`` to ``run_ended``.

    Attributes:
        declared: replicas as ``run_started`` says; None without it.
        steps_wanted: committed steps aimed at.
        device: what the replicas compute on, where the program says so.
        first_t, last_t: times of the first and last event that belongs to the run.
    """

    declared: int | None = None
    procs_per_replica: int | None = None
    steps_wanted: int | None = None
    mode: str | None = None
    sync_every: int | None = None
    seed: int | None = None
    fault_plan: str = ""
    device: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    status: str | None = None
    error: str = ""
    replicas: dict[int, Replica] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    skipped_faults: list[SkippedFault] = field(default_factory=list)
    recoveries: dict[int, Recovery] = field(default_factory=dict)
    quorums: list[Quorum] = field(default_factory=list)
    first_t: float | None = None
    last_t: float | None = None
    latest: Step | None = None

    @property
    def size(self) -> int:
        """Number of replicas: as declared, or as seen if that is more."""
        return max(self.declared or 0, len(self.replicas))

    def touch(self, t: float) -> None:
        """Widen the run's time so that it holds ``t``."""
        self.first_t = t if self.first_t is None else min(self.first_t, t)
        self.last_t = t if self.last_t is None else max(self.last_t, t)

    def replica(self, index: int) -> Replica:
        """Return the replica's record, made at its first mention."""
        return self.replicas.setdefault(index, Replica(index))

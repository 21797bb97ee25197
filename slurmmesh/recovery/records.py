"""What a run is made of, as data: the plan, and what the controller knows of each replica."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from slurmmesh.actors import ActorMesh, ProcMesh
from slurmmesh.recovery.settings import RecoverySettings
from slurmmesh.recovery.worker import Outcome
from slurmmesh.supervision import Supervision


@dataclass(frozen=True)
class Target:
    """A process that a fault may hit, as it is now.

    Attributes:
        pid: of the present process: another one after each restart.
        ready: it takes part in training.
    """

    replica: int
    mesh: str
    rank: int
    host: str
    pid: int
    ready: bool


class Stoppable(Protocol):
    """Something that goes on until it is stopped."""

    def stop(self) -> object:
        """End it."""


class FaultSource(Protocol):
    """Faults to inject into a run: ``slurmmesh.faults.Faults`` is one."""

    def describe(self) -> list[str]:
        """The plans, as a user writes them."""

    def check(self, replicas: int) -> None:
        """Raise UsageError if so many replicas are too few."""

    def start(
        self,
        replicas: int,
        targets: Callable[[], Sequence[Target]],
        fire: Callable[[Target, int], object],
    ) -> Stoppable:
        """Begin to inject. ``targets`` gives the processes as they are; ``fire`` hits one."""


@dataclass(frozen=True)
class Plan:
    """What is to be run, checked.

    Attributes:
        placement: index of the host of each replica.
        first_devices: index on its host of each replica's first device.
        gpus_per_proc: None: each process sees what its host sees.
    """

    function: Callable[..., Any]
    args: tuple[Any, ...]
    placement: tuple[int, ...]
    first_devices: tuple[int, ...]
    procs_per_replica: int
    gpus_per_proc: int | None
    threads: int
    preload: tuple[str, ...]
    env: Mapping[str, str]
    settings: RecoverySettings
    restarts: Supervision
    lighthouse_restarts: Supervision
    faults: FaultSource | None


@dataclass
class ReplicaRecord:
    """One replica as the controller knows it.

    Attributes:
        start: how often it has been started again; messages of an earlier start are ignored.
        alive_from: the first of its starts that is not known to be dead.
        state: ``preparing``, ``prepared``, ``restarting``, ``training``, ``down``, ``finished`` or
            ``left_out``.
        has_state: it could be a donor.
        stepped: it has committed a step as a participant since it was started.
        member: its name in quorums since this start; empty before the first.
        told_all: its last report is here, or it can send no more.
        back: ranks that are up again after a restart.
    """

    index: int
    procs: ProcMesh
    trainer: ActorMesh
    control: ActorMesh
    reporter: ActorMesh
    start: int = 0
    alive_from: int = 0
    state: str = "preparing"
    has_state: bool = True
    stepped: bool = False
    ending: bool = False
    member: str = ""
    told_all: bool = False
    pids: dict[int, int] = field(default_factory=dict)
    back: set[int] = field(default_factory=set)
    store: tuple[str, int] | None = None
    outcome: Outcome | None = None

    @property
    def hears(self) -> bool:
        """Whether it has a process that trains or is about to."""
        return self.state in ("preparing", "prepared", "restarting", "training")

    @property
    def settled(self) -> bool:
        """Whether nothing is expected of it any more, be it a step or a report."""
        return self.state == "left_out" or (self.state == "finished" and self.told_all)

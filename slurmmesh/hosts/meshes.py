"""What the controller knows of each proc mesh."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from slurmmesh.actors.future import Future
from slurmmesh.actors.owners import ROOT, Owner
from slurmmesh.actors.runtime import ProcEvent
from slurmmesh.errors import ExitCause, SupervisionError
from slurmmesh.shape import Region
from slurmmesh.supervision import MeshSupervisor
from slurmmesh.wire.frames import Frame


@dataclass
class RankRecord:
    """One rank: where it runs and whether it does.

    Attributes:
        end: to be settled, when it ends, with the error of those who waited for it.
        end_before: how it ended before it was started again.
    """

    host: int
    pid: int = 0
    incarnation: int = 0
    gone: bool = False
    end: Future[SupervisionError] = field(default_factory=lambda: Future("the end of a rank"))
    end_before: SupervisionError | None = None


@dataclass
class SpawnedActor:
    """An actor mesh: its name, who spawned it, and where it has not been stopped."""

    name: str
    owner: Owner
    ranks: set[int]


@dataclass
class MeshRecord:
    """One proc mesh: its ranks, its rules, and how to build its actors again.

    Attributes:
        created: CREATE frames in the order they were sent, with the ranks each is for.
        spawned: actor meshes by the number of their actor.
        actors: numbers of actors to come.
        deaths: the latest that nobody asked for, with the loop's time of each.
        over: set when the mesh was stopped or given up; raised by later calls.
        stops: futures of ``stop()`` with the ranks each still waits for.
        starts: futures of ``initialized``, likewise.
        bootstrap: a pickled function that each proc runs first; empty for none.
        gpus_per_proc: None: each sees what its host sees.
        first_gpu: of each host's, that its procs share.
        asked: indices of hosts that asked where it is.
        homes: modules of its actors' classes, which hosts import for all ranks of theirs; None if
            they are not to.
        expected: whether hosts have been told of the first of them, or that none is to come.
    """

    id: int
    name: str
    region: Region
    ranks: list[RankRecord]
    per_host: int
    env: dict[str, str]
    preload: tuple[str, ...]
    supervisor: MeshSupervisor
    owner: Owner = ROOT
    bootstrap: bytes = b""
    gpus_per_proc: int | None = None
    first_gpu: int = 0
    spawned: dict[int, SpawnedActor] = field(default_factory=dict)
    created: list[tuple[Frame, str]] = field(default_factory=list)
    subscribers: list[Callable[[ProcEvent], Any]] = field(default_factory=list)
    stops: list[tuple[set[int], Future[None]]] = field(default_factory=list)
    starts: list[tuple[set[int], Future[bool]]] = field(default_factory=list)
    actors: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    over: SupervisionError | None = None
    deaths: deque[tuple[float, ExitCause]] = field(default_factory=lambda: deque(maxlen=8))
    asked: set[int] = field(default_factory=set)
    homes: dict[str, None] | None = field(default_factory=dict)
    expected: bool = False

    @property
    def is_gone(self) -> bool:
        """Whether it is over and none of its ranks runs."""
        return self.over is not None and all(record.gone for record in self.ranks)

    def by_host(self, ranks: tuple[int, ...]) -> dict[int, list[int]]:
        """These ranks by the index of their host, order kept."""
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(self.ranks[rank].host, []).append(rank)
        return found

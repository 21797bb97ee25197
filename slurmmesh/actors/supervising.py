"""What is told to an owner whose mesh has failed, and what is told to actors besides calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmmesh.errors import ExitCause
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import URGENT, Frame, Kind

MAX_STOPPED = 1024
"""Of so many actors that were stopped, the latest, a process keeps the names."""


@dataclass(frozen=True)
class RankFailure:
    """What became of one rank of a mesh.

    Attributes:
        rank: within the whole proc mesh.
        text: what happened, in one or more lines.
        cause: how its process ended; None if it is the actor that failed.
        is_new: it is the actor's constructor that raised.
    """

    rank: int
    host: str
    text: str
    cause: ExitCause | None = None
    is_new: bool = False

    @classmethod
    def of(cls, cause: ExitCause) -> RankFailure:
        """Of a rank whose process ended."""
        lines = "".join(f"\n  | {line}" for line in cause.stderr_tail)
        text = cause.describe() + (f"; its last stderr lines:{lines}" if lines else "")
        return cls(cause.rank, cause.host, text, cause)


@dataclass(frozen=True)
class MeshFailure:
    """Ranks of a mesh that failed, as its owner is told (``Actor.__supervise__``).

    Attributes:
        mesh_name: that the actor mesh was spawned with; of a proc mesh without actors, its own.
        ranks: what failed, all that failed together.
    """

    mesh_name: str
    ranks: tuple[RankFailure, ...]

    def report(self) -> str:
        """Every rank that failed, and why."""
        numbers = ", ".join(str(each.rank) for each in self.ranks)
        many = "ranks" if len(self.ranks) > 1 else "rank"
        told = "\n".join(f"- {each.text}" for each in self.ranks)
        return f"mesh {self.mesh_name!r} has failed on {many} {numbers}:\n{told}"

    __str__ = report


@dataclass(frozen=True)
class StopActor:
    """To an actor, before what waits: end after the running message. Answered when it has."""


@dataclass(frozen=True)
class Ready:
    """To an actor, before what waits: answer if you exist."""


@dataclass(frozen=True)
class Supervise:
    """To an actor, before what waits: a mesh of yours has failed."""

    failure: MeshFailure


def order(what: Order, mesh: int, actor: int, ranks: Sequence[int]) -> Frame:
    """The frame that brings an order to actors."""
    return Frame(
        Kind.CALL, dumps(what)[0], mesh=mesh, actor=actor, ranks=tuple(ranks), flags=URGENT
    )


Order = StopActor | Ready | Supervise
"""What an urgent frame holds."""

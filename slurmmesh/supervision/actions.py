"""What is to be done: the output of a supervisor, in the order in which to do it."""

from __future__ import annotations

from dataclasses import dataclass

from slurmmesh.errors import ExitCause


@dataclass(frozen=True)
class KillRanks:
    """End these ranks, in this order (the last started first); each end is to be told back."""

    mesh: str
    ranks: tuple[int, ...]


@dataclass(frozen=True)
class RestartRanks:
    """Start these ranks, in this order, as this incarnation. None of them runs any more."""

    mesh: str
    ranks: tuple[int, ...]
    incarnation: int


@dataclass(frozen=True)
class Escalate:
    """Ranks are given up for good: their owner decides. None of them is restarted.

    Attributes:
        ranks: all of the mesh, or those that have no place left while the others go on.
        causes: the deaths that led here, oldest first.
        reason: one line.
    """

    mesh: str
    ranks: tuple[int, ...]
    causes: tuple[ExitCause, ...]
    reason: str


Action = KillRanks | RestartRanks | Escalate

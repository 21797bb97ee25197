"""What is to be done: the output of a supervisor, in the order in which to do it."""

from __future__ import annotations

from dataclasses import dataclass

from slurmmesh.errors import ExitCause


@dataclass(frozen=True)
class ReportDeath:
    """A process ended that nobody had told to. Every such death is reported once.

    ``at`` is when its host saw it, in seconds since the epoch.
    """

    cause: ExitCause
    at: float


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
    """The mesh is given up, once and for good: its owner decides. Nothing of it is restarted.

    Attributes:
        causes: the deaths that led here, oldest first.
        reason: one line.
    """

    mesh: str
    causes: tuple[ExitCause, ...]
    reason: str


Action = ReportDeath | KillRanks | RestartRanks | Escalate

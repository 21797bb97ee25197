"""What happens to the processes of a mesh: the input of its supervisor.

An ``incarnation`` is the number of the restart that made a process (0 for the first start).
It tells late news of a process that was replaced from news of the one in its place.
"""

from __future__ import annotations

from dataclasses import dataclass

from slurmmesh.errors import ExitCause


@dataclass(frozen=True)
class ProcUp:
    """A rank is ready."""

    rank: int
    host: str = ""
    pid: int = 0
    incarnation: int = 0


@dataclass(frozen=True)
class ProcExited:
    """A rank's process ended.

    Attributes:
        incarnation: None if not known.
        expected: it was told to end before it ended. Only its host can know: an order to end
            may arrive at a process that is already dead.
    """

    cause: ExitCause
    incarnation: int | None = None
    expected: bool = False


@dataclass(frozen=True)
class HostDown:
    """A host is lost, and with it these ranks of the mesh: they have no place to come back to.

    Attributes:
        causes: the death of each rank that ran there, or was to be started there.
    """

    causes: tuple[ExitCause, ...]


Event = ProcUp | ProcExited | HostDown

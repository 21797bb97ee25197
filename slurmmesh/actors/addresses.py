"""Names of processes, as ports and references to actors carry them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessId:
    """One process of a job.

    Attributes:
        mesh: id of its proc mesh; 0 is the controller.
        rank: its rank in the whole mesh.
        incarnation: how often that rank had been restarted when it began: what is sent to a
            process that is gone does not reach the one in its place.
    """

    mesh: int
    rank: int
    incarnation: int = 0

    def __str__(self) -> str:
        return f"rank {self.rank} of mesh {self.mesh}" if self.mesh else "the controller"


CONTROLLER = ProcessId(0, 0)
"""The process of the user's program."""

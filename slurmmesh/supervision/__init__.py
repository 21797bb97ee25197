"""Supervision of meshes: failure events in, actions out. No I/O and no clock of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmmesh._doors import front_door

if TYPE_CHECKING:
    from slurmmesh.supervision.actions import Action, Escalate, KillRanks, RestartRanks
    from slurmmesh.supervision.events import Event, HostDown, ProcExited, ProcUp
    from slurmmesh.supervision.mesh import MeshSupervisor
    from slurmmesh.supervision.spec import STRATEGIES, Supervision

__all__ = [
    "STRATEGIES",
    "Action",
    "Escalate",
    "Event",
    "HostDown",
    "KillRanks",
    "MeshSupervisor",
    "ProcExited",
    "ProcUp",
    "RestartRanks",
    "Supervision",
]

__getattr__, __dir__ = front_door(
    __name__,
    {
        "slurmmesh.supervision.actions": (
            "Action",
            "Escalate",
            "KillRanks",
            "RestartRanks",
        ),
        "slurmmesh.supervision.events": (
            "Event",
            "HostDown",
            "ProcExited",
            "ProcUp",
        ),
        "slurmmesh.supervision.mesh": ("MeshSupervisor",),
        "slurmmesh.supervision.spec": (
            "STRATEGIES",
            "Supervision",
        ),
    },
)

"""Supervision of meshes: failure events in, actions out. No I/O and no clock of its own."""

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

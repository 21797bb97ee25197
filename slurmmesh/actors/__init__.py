"""Actors: what users write, call and hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmmesh._doors import front_door
from slurmmesh.actors.context import (
    Context,
    context,
    current_actor_name,
    current_rank,
    current_size,
)

if TYPE_CHECKING:
    from slurmmesh.actors.accumulator import Accumulator
    from slurmmesh.actors.actor import Actor, concurrent_endpoint, endpoint
    from slurmmesh.actors.future import Future
    from slurmmesh.actors.mesh import ActorMesh, ProcMesh
    from slurmmesh.actors.ports import Channel, Port, PortReceiver, RankedPortReceiver
    from slurmmesh.actors.runtime import ProcEvent
    from slurmmesh.actors.supervising import MeshFailure

__all__ = [
    "Accumulator",
    "Actor",
    "ActorMesh",
    "Channel",
    "Context",
    "Future",
    "MeshFailure",
    "Port",
    "PortReceiver",
    "ProcEvent",
    "ProcMesh",
    "RankedPortReceiver",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
]

__getattr__, __dir__ = front_door(
    __name__,
    {
        "slurmmesh.actors.accumulator": ("Accumulator",),
        "slurmmesh.actors.actor": (
            "Actor",
            "concurrent_endpoint",
            "endpoint",
        ),
        "slurmmesh.actors.future": ("Future",),
        "slurmmesh.actors.mesh": (
            "ActorMesh",
            "ProcMesh",
        ),
        "slurmmesh.actors.ports": (
            "Channel",
            "Port",
            "PortReceiver",
            "RankedPortReceiver",
        ),
        "slurmmesh.actors.runtime": ("ProcEvent",),
        "slurmmesh.actors.supervising": ("MeshFailure",),
    },
)

"""Actors: what users write, call and hold."""

from slurmmesh.actors.accumulator import Accumulator
from slurmmesh.actors.actor import Actor, concurrent_endpoint, endpoint
from slurmmesh.actors.context import (
    Context,
    context,
    current_actor_name,
    current_rank,
    current_size,
)
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

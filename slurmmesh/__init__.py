"""slurmmesh: a Slurm allocation as one Python program.

The names below are loaded when they are first used, so that ``import slurmmesh`` is quick and
works without what a program does not use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmmesh._doors import front_door
from slurmmesh._version import __version__

if TYPE_CHECKING:
    from slurmmesh import errors, faults, gpu, recovery, telemetry
    from slurmmesh.actors import (
        Accumulator,
        Actor,
        ActorMesh,
        Channel,
        Context,
        Future,
        MeshFailure,
        Port,
        PortReceiver,
        ProcEvent,
        ProcMesh,
        concurrent_endpoint,
        context,
        current_actor_name,
        current_rank,
        current_size,
        endpoint,
    )
    from slurmmesh.errors import ActorError, SlurmmeshError, SupervisionError
    from slurmmesh.hosts import (
        HostMesh,
        Job,
        explain_errors,
        get_or_spawn_controller,
        job_or_local,
        local_hosts,
        this_host,
        this_job,
        this_proc,
        unhandled_fault_hook,
    )
    from slurmmesh.shape import Extent, Point, Region, ValueMesh
    from slurmmesh.slurm.job import Resources, SlurmJob
    from slurmmesh.supervision import Supervision

_HOMES = {
    "slurmmesh.actors": (
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
        "concurrent_endpoint",
        "context",
        "current_actor_name",
        "current_rank",
        "current_size",
        "endpoint",
    ),
    "slurmmesh.errors": ("ActorError", "SlurmmeshError", "SupervisionError"),
    "slurmmesh.hosts": (
        "HostMesh",
        "Job",
        "explain_errors",
        "get_or_spawn_controller",
        "job_or_local",
        "local_hosts",
        "this_host",
        "this_job",
        "this_proc",
        "unhandled_fault_hook",
    ),
    "slurmmesh.shape": ("Extent", "Point", "Region", "ValueMesh"),
    "slurmmesh.slurm.job": ("Resources", "SlurmJob"),
    "slurmmesh.supervision": ("Supervision",),
}

__all__ = [
    "Accumulator",
    "Actor",
    "ActorError",
    "ActorMesh",
    "Channel",
    "Context",
    "Extent",
    "Future",
    "HostMesh",
    "Job",
    "MeshFailure",
    "Point",
    "Port",
    "PortReceiver",
    "ProcEvent",
    "ProcMesh",
    "Region",
    "Resources",
    "SlurmJob",
    "SlurmmeshError",
    "Supervision",
    "SupervisionError",
    "ValueMesh",
    "__version__",
    "concurrent_endpoint",
    "context",
    "current_actor_name",
    "current_rank",
    "current_size",
    "endpoint",
    "errors",
    "explain_errors",
    "faults",
    "get_or_spawn_controller",
    "gpu",
    "job_or_local",
    "local_hosts",
    "recovery",
    "telemetry",
    "this_host",
    "this_job",
    "this_proc",
    "unhandled_fault_hook",
]

__getattr__, __dir__ = front_door(
    __name__, _HOMES, modules=("errors", "faults", "gpu", "recovery", "telemetry")
)

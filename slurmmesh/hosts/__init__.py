"""Hosts: agents on nodes, the controller that holds them, and where they come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmmesh._doors import front_door

if TYPE_CHECKING:
    from slurmmesh.hosts.endings import explain_errors, unhandled_fault_hook
    from slurmmesh.hosts.here import get_or_spawn_controller, this_host, this_proc
    from slurmmesh.hosts.job import Job, job_or_local, local_hosts, this_job
    from slurmmesh.hosts.mesh import HostMesh

__all__ = [
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
]

__getattr__, __dir__ = front_door(
    __name__,
    {
        "slurmmesh.hosts.endings": ("explain_errors", "unhandled_fault_hook"),
        "slurmmesh.hosts.here": ("get_or_spawn_controller", "this_host", "this_proc"),
        "slurmmesh.hosts.job": ("Job", "job_or_local", "local_hosts", "this_job"),
        "slurmmesh.hosts.mesh": ("HostMesh",),
    },
)

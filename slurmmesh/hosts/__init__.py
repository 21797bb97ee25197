"""Hosts: agents on nodes, the controller that holds them, and where they come from."""

from slurmmesh.hosts.endings import explain_errors, unhandled_fault_hook
from slurmmesh.hosts.job import (
    Job,
    get_or_spawn_controller,
    job_or_local,
    local_hosts,
    this_host,
    this_job,
    this_proc,
)
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

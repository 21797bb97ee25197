"""Hosts: agents on nodes, the controller that holds them, and where they come from."""

from slurmmesh.hosts.endings import explain_errors
from slurmmesh.hosts.job import Job, job_or_local, local_hosts, this_host, this_job
from slurmmesh.hosts.mesh import HostMesh

__all__ = [
    "HostMesh",
    "Job",
    "explain_errors",
    "job_or_local",
    "local_hosts",
    "this_host",
    "this_job",
]

"""Hosts on the nodes of a Slurm allocation: one srun step per node, each dials back over TLS."""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import Any

from slurmmesh.config import load_settings
from slurmmesh.errors import SetupError
from slurmmesh.hosts.controller import Controller
from slurmmesh.hosts.fabric import socket_variables
from slurmmesh.hosts.remote_agent import DialSpec, dial
from slurmmesh.hosts.roster import HostRecord
from slurmmesh.slurm.allocation import Allocation
from slurmmesh.slurm.steps import StepExecutor, StepJob

_WORDS = 5


class StepAgent:
    """A host agent in its srun step."""

    def __init__(self, job: StepJob[Any]) -> None:
        self._job = job

    def poll(self) -> str | None:
        """None while the step runs, else how it ended, with the last lines the agent wrote."""
        if self._job.poll() is None:
            return None
        words = [self._job.describe_exit()]
        with contextlib.suppress(OSError), open(self._job.paths.stderr, errors="replace") as file:
            words += [line.strip() for line in deque(file, maxlen=_WORDS)]
        return "; ".join(word for word in words if word)

    def terminate(self) -> None:
        """Ask Slurm to end the step, without waiting."""
        self._job.cancel(check=False)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the step is over; false if it is not within the time."""
        return self._job.wait_exit(timeout_s)

    def kill(self) -> None:
        """End srun itself: Slurm could not end the step, and ends it with the job."""
        self._job.kill()


def start_allocated_hosts(controller: Controller, total: int) -> list[HostRecord]:
    """Start an agent on each of the allocation's first ``total`` nodes, while the program goes on.

    They get the environment and the folder of now, whatever the program changes. Libraries that
    the program uses itself are told the controller's interface.

    Raises:
        SetupError: this is not the head of an allocation, or it has fewer nodes.
    """
    folder = controller.roster.job_folder
    assert folder is not None
    allocation = Allocation.from_env()
    if total > len(allocation.nodes):
        raise SetupError(
            f"the job was to have {total} nodes, its allocation has {len(allocation.nodes)}"
        )
    own = allocation.own_addresses()
    targets = tuple((each.address, controller.roster.listen(each.address)) for each in own)
    # Where no other node is, none is wished for either.
    alone = allocation.nodes == (allocation.this_node,)
    interface = "" if alone else load_settings().interface
    executor = StepExecutor(folder / "steps", supervise=False, environ=dict(os.environ))
    executor.update_parameters(srun_args=[f"--chdir={os.getcwd()}"])
    # The program's own: the id of a communicator is an address of its process. Hosts find theirs.
    os.environ.update(socket_variables(own[0], os.environ))

    def start(host: HostRecord) -> StepAgent:
        controller.roster.authority.issue(host.identity).write(folder / "identity")
        executor.update_parameters(
            nodelist=host.name,
            job_name=f"host-{host.name}",
            het_group=allocation.component_of(host.name),
        )
        spec = DialSpec(targets, str(folder / "identity"), host.identity, interface)
        job = executor.submit(dial, spec)
        assert isinstance(job, StepJob)
        return StepAgent(job)

    hosts = [controller.roster.add_host(node) for node in allocation.nodes[:total]]
    controller.roster.launch(hosts, start)
    return hosts

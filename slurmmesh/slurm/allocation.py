"""The allocation that a batch job runs in: its nodes, what each has, and how to reach them."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from slurmmesh.config import load_settings
from slurmmesh.errors import SetupError
from slurmmesh.slurm.addresses import Choice, parse_wish
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.reach import choose_here

_COUNTS = re.compile(r"(\d+)(?:\(x(\d+)\))?", re.ASCII)


@dataclass(frozen=True)
class Allocation:
    """What Slurm gave this job.

    Attributes:
        job_id: of the whole job.
        nodes: Slurm's node names, in Slurm's order.
        cpus: CPUs of the job on each node.
        this_node: the node that this process is on; empty outside of the allocation's nodes.
    """

    job_id: str
    nodes: tuple[str, ...]
    cpus: tuple[int, ...]
    this_node: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Allocation:
        """The allocation that the environment tells of.

        Raises:
            SetupError: there is none.
            HostListError: its node list cannot be read.
        """
        environ = os.environ if environ is None else environ
        job_id = environ.get("SLURM_JOB_ID")
        nodes = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST")
        if not job_id or not nodes:
            raise SetupError(
                "this process is in no Slurm allocation (SLURM_JOB_ID and SLURM_JOB_NODELIST are "
                "not set): start it with `python -m slurmmesh.submit`"
            )
        names = tuple(expand(nodes))
        return cls(
            job_id=job_id,
            nodes=names,
            cpus=_cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", ""), len(names)),
            this_node=environ.get("SLURMD_NODENAME", ""),
        )

    def own_addresses(self) -> tuple[Choice, ...]:
        """The address under which the other nodes are to reach this one, see ``addresses.choose``.

        Behind it, where there is one, an address of the other IP family for nodes that have only
        that. The setting ``interface`` picks them; else the route to the other nodes does, by
        the address that Slurm has of each or, where scontrol is missing, by the nodes' names.

        Raises:
            SetupError: there is none, or none that can be told from others; lists what there is.
            ConfigError: the setting is no list of interfaces or networks.
        """
        settings = load_settings()
        others = [node for node in self.nodes if node != self.this_node]
        # With no other node nothing is asked: it is the loopback's.
        told = SlurmClient(settings).node_addresses(self.nodes) if others else {}
        return choose_here(
            parse_wish(settings.interface),
            [(node, told.get(node, node)) for node in others],
            self.this_node or socket.gethostname(),
            told.get(self.this_node, self.this_node),
        )


def _cpus(text: str, nodes: int) -> tuple[int, ...]:
    """``64(x2),32`` to a number for each node; one each where Slurm does not tell."""
    counts: list[int] = []
    for match in _COUNTS.finditer(text):
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts) if len(counts) == nodes else (1,) * nodes

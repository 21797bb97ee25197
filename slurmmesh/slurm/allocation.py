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
        nodes: Slurm's node names, in Slurm's order. In a heterogeneous job those of all components
            but the first, which is the controller's.
        cpus: CPUs of the job on each node.
        this_node: the node that this process is on; empty where Slurm does not tell.
        components: of a heterogeneous job, the number of the one that each node is in; else empty.
    """

    job_id: str
    nodes: tuple[str, ...]
    cpus: tuple[int, ...]
    this_node: str = ""
    components: tuple[int, ...] = ()

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
        names, cpus, components = [*expand(nodes)], [], []
        size = environ.get("SLURM_HET_SIZE", "")
        if size.isdecimal() and int(size) > 1:
            names = []
            for number in range(1, int(size)):
                group = expand(environ.get(f"SLURM_JOB_NODELIST_HET_GROUP_{number}", ""))
                of_each = environ.get(f"SLURM_JOB_CPUS_PER_NODE_HET_GROUP_{number}", "")
                names += group
                cpus += _cpus(of_each, len(group))
                components += [number] * len(group)
        else:
            cpus = _cpus(environ.get("SLURM_JOB_CPUS_PER_NODE", ""), len(names))
        return cls(
            job_id=job_id,
            nodes=tuple(names),
            cpus=tuple(cpus),
            this_node=environ.get("SLURMD_NODENAME", ""),
            components=tuple(components),
        )

    def component_of(self, node: str) -> int | None:
        """The component of a heterogeneous job that a node is in; None in an ordinary job."""
        return self.components[self.nodes.index(node)] if self.components else None

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


def _cpus(text: str, nodes: int) -> list[int]:
    """``64(x2),32`` to a number for each node; one each where Slurm does not tell."""
    counts: list[int] = []
    for match in _COUNTS.finditer(text):
        counts += [int(match[1])] * int(match[2] or 1)
    return counts if len(counts) == nodes else [1] * nodes

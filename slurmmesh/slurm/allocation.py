"""The allocation that a batch job runs in: its nodes, what each has, and how to reach them."""

from __future__ import annotations

import contextlib
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass

from slurmmesh.config import load_settings
from slurmmesh.errors import SetupError
from slurmmesh.slurm import interfaces
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.hostlists import expand

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

    def addresses(self) -> dict[str, str]:
        """Each node's address as Slurm reaches it, a name resolved where that is possible.

        Where scontrol is missing or does not answer, the node's name is taken. A loopback
        address is only given where Slurm itself was told it (several nodes on one machine).
        """
        told = SlurmClient(load_settings()).node_addresses(self.nodes)
        return {node: _resolve(told.get(node, node)) for node in self.nodes}

    def own_address(self, addresses: Mapping[str, str]) -> str:
        """The address under which the other nodes are to reach this one.

        It is the one that ``SLURMMESH_INTERFACE`` picks, else that of the route to the other
        nodes' addresses, which on many clusters is the management network. With no other node
        it is ``127.0.0.1``: nobody else has to reach it. ``addresses`` is what ``addresses()``
        gave.

        Raises:
            SetupError: this node has no such interface.
        """
        others = [addresses[node] for node in self.nodes if node != self.this_node]
        if others and (wanted := load_settings().interface):
            return interfaces.pick(wanted)
        for other in others:
            with contextlib.suppress(OSError):
                return _source_address(other)
        return addresses.get(self.this_node, "") if others else "127.0.0.1"


def _cpus(text: str, nodes: int) -> tuple[int, ...]:
    """``64(x2),32`` to a number for each node; one each where Slurm does not tell."""
    counts: list[int] = []
    for match in _COUNTS.finditer(text):
        counts += [int(match[1])] * int(match[2] or 1)
    return tuple(counts) if len(counts) == nodes else (1,) * nodes


def _resolve(address: str) -> str:
    """A numeric address if the name has one that others can use; else the name itself."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_STREAM)
    except OSError:
        return address
    numeric = [str(entry[4][0]) for entry in found]
    if address in numeric:
        return address
    # Debian gives a host's own name 127.0.1.1: no other node reaches it there.
    outward = [each for each in numeric if not each.startswith("127.") and each != "::1"]
    return outward[0] if outward else address


def _source_address(other: str) -> str:
    """The local address of the route to ``other``. No packet is sent."""
    family, kind, protocol, _, where = socket.getaddrinfo(other, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(where)
        return str(probe.getsockname()[0])

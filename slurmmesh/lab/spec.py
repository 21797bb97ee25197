"""What a lab is asked to be, as plain data, and its place on disk. No I/O."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from slurmmesh.errors import UsageError

MAX_NODES = 512
# A lab with network namespaces has one /24: .0, .255 and the controller's .254 are taken.
MAX_NETNS_NODES = 250

_SETTING_NAME = re.compile(r"[A-Za-z][A-Za-z0-9]*\Z")
_GPU_TYPE = re.compile(r"[A-Za-z0-9_.-]+\Z")


@dataclass(frozen=True)
class LabSpec:
    """A lab's size and shape.

    Attributes:
        nodes: compute nodes, named ``node1`` .. ``nodeN``.
        cpus, gpus, gpu_type: what each node claims to have (nothing is enforced).
        netns: one network namespace per node, so that its network can be cut.
        accounting: slurmdbd and MariaDB behind ``sacct`` and ``sacctmgr``.
        slurmd_timeout_s: ``SlurmdTimeout``; a silent node is down after about 1.5 to 3 times this.
        settings: further ``slurm.conf`` settings; they replace the lab's own of the same name.
        start_timeout_s: how long all nodes may take to become idle.

    Raises:
        UsageError: a value no lab can be built from.
    """

    nodes: int = 4
    cpus: int = 64
    gpus: int = 8
    gpu_type: str = "mi300x"
    netns: bool = False
    accounting: bool = False
    slurmd_timeout_s: int = 10
    settings: Mapping[str, str] = field(default_factory=dict)
    start_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        most = MAX_NETNS_NODES if self.netns else MAX_NODES
        _within("nodes", self.nodes, 1, most)
        _within("cpus", self.cpus, 1, 65535)
        _within("gpus", self.gpus, 0, 128)
        _within("slurmd_timeout_s", self.slurmd_timeout_s, 1, 65533)
        if not self.start_timeout_s > 0:
            raise UsageError(f"start_timeout_s must be more than 0, not {self.start_timeout_s!r}")
        if not _GPU_TYPE.match(self.gpu_type):
            raise UsageError(f"gpu_type {self.gpu_type!r} is no name Slurm takes, like 'mi300x'")
        for name, value in self.settings.items():
            if not _SETTING_NAME.match(name):
                raise UsageError(f"settings: {name!r} is no name of a slurm.conf setting")
            if not isinstance(value, str) or any(c in value for c in "\n\r\0#"):
                raise UsageError(f"settings: the value of {name} must be one line without '#'")

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"node{i}" for i in range(1, self.nodes + 1))

    def node_index(self, name: str) -> int:
        """The place of a node, from 0.

        Raises:
            UsageError: no node has that name.
        """
        try:
            return self.node_names.index(name)
        except ValueError:
            raise UsageError(
                f"no node {name!r} in this lab: it has node1 .. node{self.nodes}"
            ) from None

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> LabSpec:
        return cls(**data)


def _within(name: str, value: object, least: int, most: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise UsageError(f"{name} must be a whole number from {least} to {most}, not {value!r}")


@dataclass(frozen=True)
class Layout:
    """Where things lie under a lab's root folder."""

    root: Path

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def run(self) -> Path:
        return self.root / "run"

    @property
    def log(self) -> Path:
        return self.root / "log"

    @property
    def spool(self) -> Path:
        return self.root / "spool"

    @property
    def state(self) -> Path:
        return self.root / "state"

    @property
    def database(self) -> Path:
        return self.root / "db"

    @property
    def conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def dbd_conf(self) -> Path:
        return self.etc / "slurmdbd.conf"

    @property
    def munge_key(self) -> Path:
        return self.etc / "munge.key"

    @property
    def munge_socket(self) -> Path:
        return self.run / "munge.sock"

    @property
    def database_socket(self) -> Path:
        return self.run / "db.sock"

    @property
    def control_socket(self) -> Path:
        return self.run / CONTROL_SOCKET

    @property
    def card(self) -> Path:
        """JSON about the running lab: its spec and its keeper's pid."""
        return self.run / "lab.json"

    @property
    def keeper_log(self) -> Path:
        return self.log / "lab.log"

    def output(self, daemon: str) -> Path:
        """What a daemon (``slurmctld``, ``slurmd.node1``, ...) prints."""
        return self.log / f"{daemon}.out"

    @property
    def folders(self) -> tuple[Path, ...]:
        return (self.etc, self.run, self.log, self.spool, self.state)

    @property
    def scratch(self) -> tuple[Path, ...]:
        """What is of no use, or secret, once the lab is down."""
        return (self.run, self.spool, self.state, self.database, self.munge_key, self.dbd_conf)


CONTROL_SOCKET = "slurmmesh-lab.sock"

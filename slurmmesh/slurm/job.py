"""A job to be submitted: plain data, checked when it is made."""

from __future__ import annotations

import os
import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

from slurmmesh.errors import UsageError
from slurmmesh.slurm.passthrough import directive_of
from slurmmesh.slurm.quoting import directive_value
from slurmmesh.slurm.times import check_time_limit

# More than any Slurm has nodes: a slip of the hand.
_MOST_NODES = 65536
_GPUS = re.compile(r"(?:[A-Za-z0-9_.-]+:)?(\d+)", re.ASCII)
_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True)
class SlurmJob:
    """One program on an allocation of nodes.

    Attributes:
        program: ``("train.py",)`` or ``("-m", "package.module")``.
        args: the program's own arguments, any text.
        job_root: absolute; the job folder is made below it.
        cwd: absolute; where the program runs.
        name: shown by squeue; the program's name unless given.
        nodes: hosts of the mesh; ``spares`` more are allocated and wait.
        gpus_per_node: a number, or ``type:number``; empty for none.
        cpus_per_task: of each host; None for the site's default.
        time, partition: as sbatch takes them.
        sbatch: more options of sbatch, each in one string (``--account=me``).
        python: the interpreter of the job, absolute.

    Raises:
        UsageError: a value that cannot be.
    """

    program: tuple[str, ...]
    job_root: Path
    cwd: Path
    args: tuple[str, ...] = ()
    name: str = ""
    nodes: int = 1
    spares: int = 0
    gpus_per_node: str = ""
    cpus_per_task: int | None = None
    time: str | None = None
    partition: str | None = None
    sbatch: tuple[str, ...] = ()
    python: str = field(default_factory=lambda: sys.executable)

    def __post_init__(self) -> None:
        self._check_program()
        object.__setattr__(self, "name", self.name or self._program_name())
        directive_value(self.name, "--job-name")
        if self.nodes < 1:
            raise UsageError(f"--nodes {self.nodes}: a job needs at least one node")
        if self.spares < 0:
            raise UsageError(f"--spares {self.spares}: give 0 or more")
        if self.nodes_with_spares > _MOST_NODES:
            raise UsageError(
                f"--nodes and --spares: {self.nodes_with_spares} nodes; {_MOST_NODES} are the most"
            )
        if self.cpus_per_task is not None and self.cpus_per_task < 1:
            raise UsageError(f"--cpus-per-task {self.cpus_per_task}: give 1 or more")
        if self.gpus_per_node and not _GPUS.fullmatch(self.gpus_per_node):
            raise UsageError(
                f"--gpus-per-node {self.gpus_per_node!r}: give a number, or type:number"
            )
        if self.time is not None:
            check_time_limit(self.time)
        if self.partition is not None:
            directive_value(self.partition, "--partition")
        for option in self.sbatch:
            directive_of(option)
        for path, what in ((self.job_root, "job_root"), (self.cwd, "cwd"), (self.python, "python")):
            if not os.path.isabs(path):
                raise UsageError(f"{what} {str(path)!r} must be an absolute path")

    def _check_program(self) -> None:
        match self.program:
            case ("-m", module):
                if not _MODULE.fullmatch(module):
                    raise UsageError(f"-m {module!r} is no module's name")
            case (script,):
                if not script or script.startswith("-"):
                    raise UsageError(f"{script!r} is no script")
            case _:
                raise UsageError("give a SCRIPT, or -m MODULE")
        if any("\0" in word for word in (*self.program, *self.args)):
            raise UsageError("an argument of a program cannot hold a NUL character")

    def _program_name(self) -> str:
        name = self.program[-1].rstrip("/").rpartition("/")[2]
        return re.sub(r"[\x00-\x1f\x7f]", "_", name)

    @property
    def nodes_with_spares(self) -> int:
        """What is asked of Slurm."""
        return self.nodes + self.spares

    @property
    def gpu_count(self) -> int:
        """GPUs of each node, 0 for none."""
        match = _GPUS.fullmatch(self.gpus_per_node)
        return int(match[1]) if match else 0

    @property
    def argv(self) -> tuple[str, ...]:
        """What the controller runs: the program and its arguments."""
        return (*self.program, *self.args)

"""What a step asks for, and the options of srun that say so."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurmmesh.errors import UsageError
from slurmmesh.slurm.hostlists import expand

if TYPE_CHECKING:
    from slurmmesh.slurm.allocation import Allocation

# A step that nears its time limit gets its signal this much before it, at most.
_LARGEST_PART_FOR_SAVING = 0.2


@dataclass(frozen=True)
class StepParameters:
    """What a step asks for, by the names that submitit's parameters have for Slurm.

    Attributes:
        job_name: the step's name in squeue.
        nodes, ntasks_per_node: its shape.
        nodelist: host list of the nodes to use; any of the job's if empty.
        cpus_per_task: 0 for all that the job has on a node, shared by its tasks there.
        gpus_per_node: a number or ``type:number``; None for whatever the job has.
        gpus_per_task: so many for each task alone; None for no such limit.
        mem_gb: of each node; 0 for all of the job's.
        time: minutes; 0 for as long as the job.
        signal_delay_s: how long before its time limit a step is told to save its state; a fifth
            of the limit at most.
        stderr_to_stdout: both in the file of stdout.
        setup: lines of bash to run before srun, where the step is submitted.
        array_parallelism: how many steps of one ``map_array`` run at once; 0 for as many as the
            executor starts.
        srun_args: further arguments of srun; they win over ours.
        het_group: the component of a heterogeneous job to run in.

    Raises:
        UsageError: a value that no step can have.
    """

    job_name: str = ""
    nodes: int = 1
    ntasks_per_node: int = 1
    nodelist: str = ""
    cpus_per_task: int = 0
    gpus_per_node: int | str | None = None
    gpus_per_task: int | str | None = None
    mem_gb: float = 0
    time: float = 0
    signal_delay_s: float = 90
    stderr_to_stdout: bool = False
    setup: Sequence[str] = ()
    array_parallelism: int = 0
    srun_args: Sequence[str] = ()
    het_group: int | None = None

    def __post_init__(self) -> None:
        for name, least in (
            ("nodes", 1),
            ("ntasks_per_node", 1),
            ("cpus_per_task", 0),
            ("mem_gb", 0),
            ("time", 0),
            ("signal_delay_s", 0),
            ("array_parallelism", 0),
        ):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not least <= value < math.inf:
                raise UsageError(f"{name}={value!r}: a step needs a number of {least} or more")
        for name in ("setup", "srun_args"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(each, str) for each in value):
                raise UsageError(f"{name}={value!r}: give a list of texts")

    @property
    def tasks(self) -> int:
        """How many tasks it has in all."""
        return self.nodes * self.ntasks_per_node

    @property
    def warn_after_s(self) -> float | None:
        """Seconds after its start when a step is told that its time is nearly up."""
        limit = self.time * 60
        return max(limit - self.signal_delay_s, limit * (1 - _LARGEST_PART_FOR_SAVING)) or None

    def srun_options(self, allocation: Allocation) -> list[str]:
        """The options of srun.

        Raises:
            UsageError: more nodes than the allocation has, or none of its nodes.
        """
        if self.nodes > len(allocation.nodes):
            raise UsageError(
                f"a step of {self.nodes} nodes does not fit: job {allocation.job_id} has "
                f"{len(allocation.nodes)}"
            )
        named = expand(self.nodelist)
        if strange := [node for node in named if node not in allocation.nodes]:
            raise UsageError(f"{', '.join(strange)}: no node of job {allocation.job_id}")
        cpus = dict(zip(allocation.nodes, allocation.cpus, strict=True))
        least = min(cpus[node] for node in named or allocation.nodes)
        options = [
            "--overlap",
            "--no-kill",
            "--kill-on-bad-exit=0",
            "--wait=0",
            f"--nodes={self.nodes}",
            f"--ntasks={self.tasks}",
            f"--cpus-per-task={self.cpus_per_task or max(1, least // self.ntasks_per_node)}",
            # Hosts bind their processes themselves.
            "--cpu-bind=none",
            "--mpi=none",
            "--export=ALL",
            "--unbuffered",
            "--input=none",
        ]
        if self.het_group is not None:
            options.append(f"--het-group={self.het_group}")
        if self.job_name:
            options.append(f"--job-name={self.job_name}")
        if named:
            options.append(f"--nodelist={','.join(named)}")
        if self.gpus_per_node is not None:
            options.append(f"--gpus-per-node={self.gpus_per_node}")
        if self.gpus_per_task is not None:
            options.append(f"--gpus-per-task={self.gpus_per_task}")
        if self.mem_gb:
            options.append(f"--mem={round(self.mem_gb * 1024)}M")
        if self.time:
            minutes, seconds = divmod(math.ceil(self.time * 60), 60)
            options.append(f"--time={minutes}:{seconds:02}")
        return [*options, *self.srun_args]

"""What a function in a step sees of it, by submitit's names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from submitit.core import utils
from submitit.core.job_environment import JobEnvironment

from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.steps.interruptions import Interruptions
from slurmmesh.slurm.steps.paths import StepPaths, write_json

NAME = "slurmmesh"
TAG = "SLURMMESH_STEP_TAG"


class StepJobEnvironment(JobEnvironment):
    """The step that this process is a task of.

    Attributes:
        supervised: signals are treated as submitit does; else the function is left alone with
            them, but for SIGUSR2, which would kill it.
    """

    _env = {
        "job_id": TAG,
        "num_tasks": "SLURM_STEP_NUM_TASKS",
        "num_nodes": "SLURM_STEP_NUM_NODES",
        "node": "SLURM_NODEID",
        "nodes": "SLURM_STEP_NODELIST",
        "global_rank": "SLURM_PROCID",
        "local_rank": "SLURM_LOCALID",
    }
    supervised = True

    @classmethod
    def name(cls) -> str:
        """The cluster's name for submitit."""
        return NAME

    @property
    def hostnames(self) -> Sequence[str]:
        """The nodes of the step."""
        return expand(os.environ.get(self._env["nodes"], "")) or [self.hostname]

    @property
    def paths(self) -> StepPaths:
        """The files of this task."""
        return StepPaths(os.environ["SUBMITIT_FOLDER"], self.job_id, self.global_rank)

    @property
    def array_job_id(self) -> str | None:
        """What the ids of a ``map_array`` have in common; None for a step of its own."""
        return self.raw_job_id.rpartition("_")[0] or None

    @property
    def array_task_id(self) -> str | None:
        """Which of a ``map_array`` it is."""
        return self.raw_job_id.rpartition("_")[2] if self.array_job_id else None

    def _handle_signals(self, paths: utils.JobPaths, submission: utils.DelayedSubmission) -> None:
        mine = self.paths
        handlers = Interruptions(self, mine, submission)
        signal.signal(signal.SIGCONT, handlers.ignore)
        if not self.supervised:
            signal.signal(self._usr_sig(), handlers.ignore)
            return
        signal.signal(signal.SIGTERM, handlers.terminate)
        signal.signal(self._usr_sig(), handlers.make_room)
        if self.global_rank == 0:
            step = f"{os.environ.get('SLURM_JOB_ID')}.{os.environ.get('SLURM_STEP_ID')}"
            nodes = os.environ.get(self._env["nodes"], "")
            write_json(mine.started, {"step": step, "nodes": nodes, "time": time.time()})

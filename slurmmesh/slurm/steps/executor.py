"""submitit's executor that starts steps inside the allocation: srun where submitit has sbatch.

Each task of a step loads this too, since submitit loads all its plugins there. What only those need
who submit is loaded when they do.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from submitit.core import core, utils

from slurmmesh.errors import SetupError, UsageError
from slurmmesh.slurm.bootstrap import python_code
from slurmmesh.slurm.quoting import literal_pattern
from slurmmesh.slurm.steps.inside import NAME, TAG
from slurmmesh.slurm.steps.interruptions import set_warning
from slurmmesh.slurm.steps.job import StepJob
from slurmmesh.slurm.steps.parameters import StepParameters
from slurmmesh.slurm.steps.paths import StepPaths
from slurmmesh.slurm.steps.runner import RUNNER, Slots, Step
from slurmmesh.slurm.steps.script import submission_script

if TYPE_CHECKING:
    from slurmmesh.slurm.allocation import Allocation

R = TypeVar("R", covariant=True)


class SubmissionTooLarge(UsageError, RuntimeError):
    """What is to be pickled is more than the executor's ``max_pickle_size_gb``."""


class _Names(frozenset[str]):
    """Names of parameters of which submitit learns only when it asks for one.

    submitit takes a listed name without a prefix for ours, even where it was always Slurm's: a
    script for the cluster "slurm" would lose its ``array_parallelism`` once we are installed.
    """

    def __iter__(self) -> Iterator[str]:
        return map(repr, sorted(super().__iter__()))


class StepExecutor(core.PicklingExecutor):
    """Starts functions as steps of the allocation that this process is in.

    Each option of srun is given in its argv; none comes from the environment. A step survives the
    loss of other nodes and of other steps, and shares the job's resources with them.

    ``update_parameters`` takes the fields of ``StepParameters``. The folder holds pickles that
    are run: it must be writable for nobody else, and all nodes must see it.

    Args:
        folder: for the steps' pickles and output; ``%j`` in it stands for a step's id.
        max_num_timeout: how often a step that saves its state is started again after its time
            was up.
        max_pickle_size_gb: of all functions and arguments of one submission.
        python: the shell command that starts Python in a step, such as one that enters a
            container; this process's interpreter if None.
        max_running: how many steps run at once; more wait for their turn. Sites do not bear many
            more than 100 sruns.
        supervise: steps may wait for their turn, are started again when they were interrupted,
            and are waited for at the end of the program. Else they are started at once and left to
            the caller.
        environ: where the allocation is told; the process's own if None.

    Raises:
        SetupError: outside of an allocation, or srun is not installed.
        UsageError: on submit, for parameters that do not fit.
    """

    job_class = StepJob
    _numbers = itertools.count()

    def __init__(
        self,
        folder: Path | str,
        max_num_timeout: int = 3,
        max_pickle_size_gb: float = 1.0,
        python: str | None = None,
        max_running: int = 64,
        supervise: bool = True,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(folder, max_num_timeout, max_pickle_size_gb)
        if max_running < 1:
            raise UsageError(f"max_running={max_running}: at least one step has to run")
        self.python = shlex.quote(sys.executable) if python is None else python
        self._environ = os.environ if environ is None else environ
        self._supervise = supervise
        self._slots = Slots(max_running)
        self._allocation()

    @classmethod
    def name(cls) -> str:
        """The cluster's name for submitit."""
        return NAME

    @classmethod
    def affinity(cls) -> int:
        """Never taken unless asked for by name; not there outside of an allocation."""
        return 0 if "SLURM_JOB_ID" in os.environ else -1

    @classmethod
    def _equivalence_dict(cls) -> core.EquivalenceDict:
        return {
            "name": "job_name",
            "timeout_min": "time",
            "mem_gb": "mem_gb",
            "nodes": "nodes",
            "cpus_per_task": "cpus_per_task",
            "gpus_per_node": "gpus_per_node",
            "tasks_per_node": "ntasks_per_node",
        }

    @classmethod
    def _valid_parameters(cls) -> set[str]:
        return cast("set[str]", _Names(StepParameters.__dataclass_fields__))

    def submit(self, fn: Callable[..., R], *args: Any, **kwargs: Any) -> StepJob[R]:
        """Start ``fn(*args, **kwargs)`` as a step; returns at once."""
        return cast("StepJob[R]", super().submit(fn, *args, **kwargs))

    def _internal_update_parameters(self, **kwargs: Any) -> None:
        known = sorted(StepParameters.__dataclass_fields__)
        if unknown := sorted(kwargs.keys() - set(known)):
            raise UsageError(f"unknown parameters {unknown} of a step; it has {known}")
        StepParameters(**{**self.parameters, **kwargs})
        super()._internal_update_parameters(**kwargs)

    def _internal_process_submissions(
        self, delayed_submissions: Sequence[utils.DelayedSubmission]
    ) -> list[core.Job[Any]]:
        """Several submissions are an array: their ids differ in their ends only.

        Nothing is started before everything is pickled.
        """
        from slurmmesh.slurm.environment import for_step

        if shutil.which("srun", path=self._environ.get("PATH")) is None:
            raise SetupError("srun is not installed here: a step needs it")
        parameters = StepParameters(**self.parameters)
        allocation = self._allocation()
        options = parameters.srun_options(allocation)
        array = f"{allocation.job_id}.{next(self._numbers)}.{uuid.uuid4().hex[:6]}"
        count = len(delayed_submissions)
        tags = [array] if count == 1 else [f"{array}_{index}" for index in range(count)]
        everything = [StepPaths(self.folder, tag, 0) for tag in tags]
        self._dump(delayed_submissions, everything, parameters)
        slots = [self._slots] if self._supervise else []
        if parameters.array_parallelism and self._supervise:
            slots.append(Slots(parameters.array_parallelism))
        environ = for_step(self._environ)
        jobs: list[core.Job[Any]] = []
        for paths in everything:
            paths.submission_file.write_bytes(self._script(paths, options, parameters))
            step = Step(
                paths,
                parameters.tasks,
                environ,
                slots=tuple(slots),
                supervised=self._supervise,
                awaited=self._supervise,
                warn_after_s=parameters.warn_after_s if self._supervise else None,
            )
            RUNNER.submit(step)
            jobs.append(StepJob(self.folder, step.tag, list(range(parameters.tasks))))
        return jobs

    def _allocation(self) -> Allocation:
        from slurmmesh.slurm.allocation import Allocation

        return Allocation.from_env(self._environ)

    def _dump(
        self,
        submissions: Sequence[utils.DelayedSubmission],
        everything: Sequence[StepPaths],
        parameters: StepParameters,
    ) -> None:
        """Pickle all, or leave nothing behind. Their size is taken from the first's."""
        try:
            for index, (submission, paths) in enumerate(zip(submissions, everything, strict=True)):
                paths.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                submission.set_timeout(cast("int", parameters.time), self.max_num_timeout)
                set_warning(submission, parameters.warn_after_s)
                submission.dump(paths.submitted_pickle)
                size = paths.submitted_pickle.stat().st_size / 1024**3
                if index == 0 and size * len(submissions) > self.max_pickle_size_gb:
                    raise SubmissionTooLarge(
                        f"functions and arguments would be {len(submissions)} x {size:.2f} GB of "
                        f"pickles, and {self.max_pickle_size_gb} GB are allowed: pass large things "
                        "by the path of a file, or set max_pickle_size_gb of the executor"
                    )
        except BaseException:
            for paths in everything:
                with contextlib.suppress(OSError):
                    paths.submitted_pickle.unlink()
            raise

    def _script(
        self, paths: StepPaths, options: Sequence[str], parameters: StepParameters
    ) -> bytes:
        pattern = f"{literal_pattern(paths.folder)}/{paths.job_id}_%t_log"
        files = [f"--output={pattern}.out", "--open-mode=append"]
        if not parameters.stderr_to_stdout:
            files.append(f"--error={pattern}.err")
        return submission_script(
            ["srun", *files, *options, *self._command()],
            {TAG: str(paths.job_id), "SUBMITIT_EXECUTOR": NAME},
            parameters.setup,
        )

    def _command(self) -> list[str]:
        """What each task runs."""
        entry = ["-u", "-c", python_code("slurmmesh.slurm.step_main")]
        alone = [] if self._supervise else ["--alone"]
        return [*shlex.split(self.python), *entry, *alone, str(self.folder)]

    # The base class asks for these only where it starts a job itself.

    def _num_tasks(self) -> int:
        return StepParameters(**self.parameters).tasks

    def _make_submission_file_text(self, command: str, uid: str) -> NoReturn:
        raise NotImplementedError("a step's file is written when its id is known")

    def _make_submission_command(self, submission_file_path: Path) -> NoReturn:
        raise NotImplementedError("a step is started by its file")

    @staticmethod
    def _get_job_id_from_submission_command(string: bytes | str) -> NoReturn:
        raise NotImplementedError("a step's id is not read from any output")

"""What a user holds of a step: submitit's job, and what its srun tells."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from submitit.core import core
from submitit.core.utils import UncompletedJobError

from slurmmesh.errors import SetupError
from slurmmesh.slurm.steps.endings import StepDied, srun_words, task_ends
from slurmmesh.slurm.steps.paths import StepPaths, read_json
from slurmmesh.slurm.steps.runner import GRACE_S, RUNNER, Step, tail

R = TypeVar("R", covariant=True)

_LOOK_EVERY_S = 0.1
# Each look at a step of another process may be a question to Slurm.
_LOOK_ELSEWHERE_EVERY_S = 1.0
_TAIL_LINES = 10
_HOW = {
    "CANCELLED": "it was cancelled",
    "TIMEOUT": "it reached its time limit",
    "NODE_FAIL": "its node failed",
    "OUT_OF_MEMORY": "it ran out of memory",
    "COMPLETED": "it ended by itself",
}


@dataclass(eq=False)
class Known:
    """What is kept of a step, for as long as somebody has its job in hand.

    Attributes:
        paths: of its first task.
        tasks: how many it has.
        step: what this process runs or ran of it; None for a step of another process.
        gone_since: when Slurm was first seen not to list it (``time.monotonic``).
    """

    paths: StepPaths
    tasks: int
    step: Step | None
    gone_since: float | None = None


class StepWatcher(core.InfoWatcher):
    """The states of steps, from their sruns; of other processes' steps, from their files."""

    def __init__(self) -> None:
        super().__init__()
        self._known: WeakValueDictionary[str, Known] = WeakValueDictionary()

    def remember(self, paths: StepPaths, tasks: int) -> Known:
        """Know a step while what is returned is kept: its first task's paths, how many it has."""
        job_id = str(paths.job_id)
        known = self._known.get(job_id) or Known(paths, tasks, RUNNER.find(job_id))
        known.tasks = max(known.tasks, tasks)  # one task's job may come first
        self._known[job_id] = known
        return known

    def get_state(self, job_id: str, mode: str = "standard") -> str:
        """In Slurm's words: PENDING, RUNNING, REQUEUED, COMPLETED, FAILED and so on."""
        if step := RUNNER.find(job_id):
            return step.state
        known = self._known.get(job_id)
        return _elsewhere().state(known) if known else "UNKNOWN"

    def get_info(self, job_id: str, mode: str = "standard") -> dict[str, str]:
        """What sacct would tell of it, by sacct's names."""
        info = {"JobID": job_id, "State": self.get_state(job_id, mode)}
        if known := self._known.get(job_id):
            started = read_json(known.paths.started)
            info |= {"StepID": started.get("step", ""), "NodeList": started.get("nodes", "")}
        return info


class StepJob(core.Job[R]):
    """A step. Besides submitit's methods it tells of its srun, in the process that started it.

    Where a step has several tasks, the first failure that is known ends ``results()`` and
    ``exception()``, while the other tasks still run.
    """

    watcher = StepWatcher()
    _paths: StepPaths
    # A result is there before its task ends; this is for slow file systems.
    _results_timeout_s = 2

    def __init__(self, folder: Path | str, job_id: str, tasks: Sequence[int] = (0,)) -> None:
        super().__init__(folder, job_id, tasks)
        self._paths = StepPaths(folder, job_id, self.task_id)
        self._count = len(self._tasks)
        for job in self._sub_jobs:
            job._count = self._count  # type: ignore[attr-defined]
        self._register_in_watcher()

    def _register_in_watcher(self) -> None:
        if hasattr(self, "_count"):  # the base class calls it before there is anything to tell
            self._known = self.watcher.remember(self._paths.of_task(0), self._count)

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in super().__getstate__().items() if k != "_known"}

    # -- submitit's ------------------------------------------------------------------------------

    def done(self, force_check: bool = False) -> bool:
        """Whether it is over: there is a result, or there will be none."""
        if self._sub_jobs:
            return all(job.done(force_check) for job in self._sub_jobs)
        self.paths.refresh()
        return (
            self.paths.result_pickle.exists()
            or self.watcher.is_done(self.job_id)
            or self._has_died()
        )

    def wait(self) -> None:
        """Wait until all its tasks are over."""
        while not self.done():
            self._pause()

    def results(self) -> list[R]:
        """The results of all tasks, in their order; waits for them.

        Raises:
            FailedJobError: the function raised. Told as soon as it is known of one task.
            StepDied: a task ended without a result.
        """
        if not self._sub_jobs:
            return super().results()
        results: dict[int, R] = {}
        if failure := self._first_failure(results):
            raise failure
        return [results[task] for task in sorted(results)]

    def exception(self) -> UncompletedJobError | None:
        """Why it has no result; None if it has. Waits for that; raises nothing."""
        return self._first_failure({}) if self._sub_jobs else super().exception()

    def cancel(self, check: bool = True) -> None:
        """End the step, or have it not started. ``check`` waits until that is done."""
        step = RUNNER.find(self.job_id)
        if step is None:
            _elsewhere().cancel(self.paths)
            deadline = time.monotonic() + GRACE_S
            while check and not self.watcher.is_done(self.job_id) and time.monotonic() < deadline:
                time.sleep(_LOOK_ELSEWHERE_EVERY_S)
            return
        RUNNER.cancel(step)
        if check and not step.over.wait(GRACE_S):
            RUNNER.kill(step)

    def cancel_at_deletion(self, value: bool = True) -> StepJob[R]:
        """Cancel the step when this object goes, at the end of the program at the latest."""
        super().cancel_at_deletion(value)
        if step := RUNNER.find(self.job_id):
            step.awaited = step.supervised and not value
        return self

    def _interrupt(self, timeout: bool = False) -> None:
        """Tell the step to save its state and make room, as a preemption (or its time limit) does.

        Raises:
            UsageError: it has not started yet, or is over.
        """
        if step := RUNNER.find(self.job_id):
            RUNNER.interrupt(step, timeout)
        else:
            _elsewhere().interrupt(self.paths, timeout)

    # -- ours ------------------------------------------------------------------------------------

    @property
    def paths(self) -> StepPaths:
        """Its files; for a step of several tasks those of the first."""
        return self._paths

    def poll(self) -> int | None:
        """None until it is over, else srun's exit code (negative: the signal that killed srun)."""
        return self._step.code

    def pidfd(self) -> int:
        """A new descriptor that gets readable when srun ends; the caller closes it.

        Raises:
            ProcessLookupError: there is no srun, because the step waits or is over.
        """
        process = self._step.process
        if process is None:
            raise ProcessLookupError(f"step {self.job_id} has no srun now")
        return os.pidfd_open(process.pid)

    def wait_exit(self, timeout_s: float | None = None) -> bool:
        """Wait until it is over, srun included; false if ``timeout_s`` passed before."""
        return self._step.over.wait(timeout_s)

    def kill(self) -> None:
        """Kill srun itself, without asking Slurm: for a step whose node does not answer."""
        RUNNER.kill(self._step)

    def describe_exit(self) -> str:
        """How the step ended, with the last that srun said; empty until it has."""
        code = self.poll()
        if code is None:
            return ""
        how = f"exited with code {code}" if code >= 0 else f"was killed by signal {-code}"
        said = self.srun_messages()
        return f"its srun {how}" + (f": {said}" if said else "")

    def srun_messages(self) -> str:
        """The last lines that srun itself said (its tasks' output is in ``paths``)."""
        return srun_words(tail(self.paths.srun_log))

    @property
    def _step(self) -> Step:
        step = RUNNER.find(self.job_id)
        if step is None:
            raise SetupError(f"step {self.job_id} was started by another process")
        return step

    # -- how it ended ----------------------------------------------------------------------------

    def _pause(self) -> None:
        if step := RUNNER.find(self.job_id):
            step.over.wait(_LOOK_EVERY_S)
            if step.over.is_set():
                return
        else:
            time.sleep(_LOOK_ELSEWHERE_EVERY_S)

    def _first_failure(self, results: dict[int, R]) -> UncompletedJobError | None:
        """Wait for all tasks, or for the first that fails. Fills ``results`` by their ranks.

        A result that is there early goes if the step is started again: it counts once all are.
        """
        stamps: dict[int, object] = {}
        while True:
            failures: list[UncompletedJobError] = []
            for task, job in enumerate(self._sub_jobs):
                stamp = _stamp(job.paths.result_pickle)
                if task in results and stamps[task] == stamp:
                    continue
                results.pop(task, None)
                if not job.done():
                    continue
                try:
                    outcome, result = job._get_outcome_and_result()
                except UncompletedJobError as error:
                    failures.append(error)
                    continue
                stamps[task], results[task] = stamp, result
                if outcome == "error" and (raised := job.exception()):
                    failures.append(raised)
            if failures:
                # One that raised rather than one that was killed, perhaps because of it.
                return min(failures, key=lambda error: isinstance(error, StepDied))
            if len(results) == len(self._sub_jobs):
                return None
            self._pause()

    def _has_died(self) -> bool:
        """Whether srun told of this task's end, and not because it is to be started again.

        Before the wish to be started again is taken away, srun's words are: they count only if
        they are still there when the wish is not.
        """
        rank = self.task_id or 0

        def told() -> bool:
            return rank in task_ends(self.srun_messages())

        return told() and not self.paths.requeue.exists() and told()

    def _get_outcome_and_result(self) -> tuple[str, Any]:
        # Where it is known that the task was ended there is nothing to wait for.
        patience = self._results_timeout_s if self.state == "COMPLETED" else 0
        deadline = time.monotonic() + patience
        while not self.paths.result_pickle.exists():
            if not self.done():  # it was, and the step has been started again since
                self.wait()
            elif time.monotonic() >= deadline:
                raise self._died()
            time.sleep(_LOOK_EVERY_S)
            self.paths.refresh()
        return super()._get_outcome_and_result()

    def _died(self) -> StepDied:
        rank = self.task_id or 0
        state = self.state
        said = self.srun_messages()
        end = task_ends(said).get(rank)
        written = tail(self.paths.stderr) or tail(self.paths.stdout)
        last = tuple(written.splitlines()[-_TAIL_LINES:])
        how = end.describe() if end and state != "CANCELLED" else _HOW.get(state, "it did not run")
        lines = [f"Task {rank} of step {self.job_id} has no result ({state}): {how}"]
        if said:
            lines += ["srun said:", *(f"  {line}" for line in said.splitlines())]
        if last:
            lines += ["The last lines of its output:", *(f"  {line}" for line in last)]
        lines.append(f"All of it: {self.paths.stderr} and {self.paths.stdout}")
        return StepDied(
            "\n".join(lines),
            task=rank,
            state=state,
            code=end.exit_code if end else None,
            signal=end.signal if end else None,
            stderr_tail=last,
        )


def _elsewhere() -> ModuleType:
    # It asks Slurm, for which a step itself, which loads this too, has no use.
    from slurmmesh.slurm.steps import elsewhere

    return elsewhere


def _stamp(path: Path) -> object:
    """Another one for each file that is put there; None for no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns

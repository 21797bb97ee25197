"""A step that another process started: what its files and Slurm tell, and what can be done.

A step whose program is gone goes on. If it then asks to be started again, whoever looks at it from
within its allocation does that.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator

from slurmmesh.config import load_settings
from slurmmesh.errors import MissingDependencyError, SubmitError, UsageError
from slurmmesh.slurm import environment
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.pacing import back_off
from slurmmesh.slurm.steps.inside import StepJobEnvironment
from slurmmesh.slurm.steps.job import Known
from slurmmesh.slurm.steps.paths import StepPaths, read_json, take
from slurmmesh.slurm.steps.runner import RUNNER, Step, clear_attempt

# Slurm is not asked more often; when it does not answer, less and less often.
_ASK_EVERY_S = 2.0
_ASK_AT_LEAST_EVERY_S = 30.0
# So long a living program has to say what comes of a step that Slurm does not list any more.
_GONE_FOR_S = 5.0


class _Living:
    """What of a job lives, by ``SlurmClient.steps``. Slurm's silence ends nothing."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._known: frozenset[str] | None = None
        self._next_question = time.monotonic()
        self._pauses = _pauses()

    def ask(self) -> frozenset[str] | None:
        """As Slurm told it last; None if it never has."""
        if time.monotonic() >= self._next_question:
            with contextlib.suppress(SubmitError, MissingDependencyError):
                self._known = _client().steps(JobRef(self._job))
                self._pauses = _pauses()
            self._next_question = time.monotonic() + next(self._pauses)
        return self._known


def _pauses() -> Iterator[float]:
    return back_off(_ASK_EVERY_S, _ASK_AT_LEAST_EVERY_S)


_living: dict[str, _Living] = {}


def state(known: Known) -> str:
    """Its state, in Slurm's words; UNKNOWN while Slurm has never answered."""
    paths, tasks = known.paths, known.tasks
    paths.refresh()
    if ended := read_json(paths.ended):
        return str(ended.get("state"))
    step = read_json(paths.started).get("step")
    if step is None and paths.cancel.exists():
        return "CANCELLED"
    job = _job_of(paths)
    living = _living.setdefault(job, _Living(job)).ask()
    if living is None:
        return "UNKNOWN"
    if step in living:
        known.gone_since = None
        return "RUNNING"
    now = time.monotonic()
    known.gone_since = now if known.gone_since is None else known.gone_since
    if now - known.gone_since < _GONE_FOR_S:
        return "PENDING" if step is None else "COMPLETING"
    if step is None:
        # It waits, or it was gone before it heeded signals; the job's end is the end of both.
        return "PENDING" if living else "CANCELLED"
    if paths.requeue.exists():
        return _take_over(known)
    results = [paths.of_task(task).result_pickle.exists() for task in range(tasks)]
    return "COMPLETED" if all(results) else "FAILED"


def cancel(paths: StepPaths) -> None:
    """End it, or have it not started.

    Raises:
        SubmitError: Slurm does not answer.
    """
    if paths.ended.exists():
        return
    paths.cancel.touch()
    if step := read_json(paths.started).get("step"):
        _client().signal_step(step)


def interrupt(paths: StepPaths, timeout: bool) -> None:
    """Tell it to save its state and make room.

    Raises:
        UsageError: it has not started yet, or is over.
        SubmitError: Slurm does not answer.
    """
    step = read_json(paths.started).get("step")
    if step is None or paths.ended.exists():
        raise UsageError(f"step {paths.job_id} does not run: there is nothing to interrupt")
    if timeout:
        paths.timeout.touch()
    _client().signal_step(step, StepJobEnvironment.USR_SIG)


def _take_over(known: Known) -> str:
    """Start it again in place of its program, if this process is in its allocation."""
    paths = known.paths
    if os.environ.get("SLURM_JOB_ID") != _job_of(paths):
        return "REQUEUED"
    warn_after_s = read_json(paths.requeue).get("warn_after_s")
    clear_attempt(paths, known.tasks)
    if take(paths.requeue):
        environ = environment.for_step(os.environ)
        known.step = Step(paths, known.tasks, environ, warn_after_s=warn_after_s)
        RUNNER.submit(known.step)
    return "REQUEUED"


def _job_of(paths: StepPaths) -> str:
    return str(paths.job_id).partition(".")[0]


def _client() -> SlurmClient:
    return SlurmClient(load_settings())

"""A step that another process started: what its files and Slurm tell, and what can be done.

A step whose program is gone goes on. If it then asks to be started again, whoever looks at it from
within its allocation does that.
"""

from __future__ import annotations

import os
import time

from slurmmesh.config import load_settings
from slurmmesh.errors import UsageError
from slurmmesh.slurm import commands, environment
from slurmmesh.slurm.steps.inside import StepJobEnvironment
from slurmmesh.slurm.steps.paths import StepPaths, read_json, take
from slurmmesh.slurm.steps.runner import RUNNER, Step, clear_attempt

# Slurm is not asked more often.
_ASK_EVERY_S = 2.0
# So long a living program has to say what comes of a step that Slurm does not list any more.
_GONE_FOR_S = 5.0

_answers: dict[str, tuple[float, set[str] | None]] = {}
_gone_since: dict[str, float] = {}


def state(paths: StepPaths, tasks: int) -> str:
    """Its state, in Slurm's words; UNKNOWN where Slurm does not answer."""
    paths.refresh()
    if ended := read_json(paths.ended):
        return str(ended.get("state"))
    step = read_json(paths.started).get("step")
    if step is None and paths.cancel.exists():
        return "CANCELLED"
    living = _living_steps(_job_of(paths))
    if living is None:
        return "UNKNOWN"
    if step in living:
        _gone_since.pop(str(paths.job_id), None)
        return "RUNNING"
    since = _gone_since.setdefault(str(paths.job_id), time.monotonic())
    if time.monotonic() - since < _GONE_FOR_S:
        return "PENDING" if step is None else "COMPLETING"
    if step is None:
        # It waits, or it was gone before it heeded signals; the job's end is the end of both.
        return "PENDING" if living else "CANCELLED"
    if paths.requeue.exists():
        return _take_over(paths, tasks)
    results = [paths.of_task(task).result_pickle.exists() for task in range(tasks)]
    return "COMPLETED" if all(results) else "FAILED"


def cancel(paths: StepPaths) -> None:
    """End it, or have it not started."""
    paths.cancel.touch()
    if step := read_json(paths.started).get("step"):
        _scancel(step)


def interrupt(paths: StepPaths, timeout: bool) -> None:
    """Tell it to save its state and make room.

    Raises:
        UsageError: it has not started yet, or is over.
    """
    step = read_json(paths.started).get("step")
    if step is None or paths.ended.exists():
        raise UsageError(f"step {paths.job_id} does not run: there is nothing to interrupt")
    if timeout:
        paths.timeout.touch()
    _scancel(f"--signal={StepJobEnvironment.USR_SIG}", step)


def _take_over(paths: StepPaths, tasks: int) -> str:
    """Start it again in place of its program, if this process is in its allocation."""
    if os.environ.get("SLURM_JOB_ID") != _job_of(paths):
        return "REQUEUED"
    warn_after_s = read_json(paths.requeue).get("warn_after_s")
    clear_attempt(paths, tasks)
    if take(paths.requeue):
        environ = environment.for_step(os.environ)
        RUNNER.submit(Step(paths, tasks, environ, warn_after_s=warn_after_s))
    return "REQUEUED"


def _job_of(paths: StepPaths) -> str:
    return str(paths.job_id).partition(".")[0]


def _living_steps(job: str) -> set[str] | None:
    """The ids of a job's steps, as ``12.3``; None if Slurm does not answer.

    Also of a job that has no step there is one, as long as it lives: its own.
    """
    when, answer = _answers.get(job, (-_ASK_EVERY_S, None))
    if time.monotonic() - when >= _ASK_EVERY_S:
        told = _squeue("--jobs", job, "--states=running,suspended", "--format=%i")
        steps = _squeue("--steps", "--jobs", job, "--format=%i")
        answer = None if told is None or steps is None else told | steps
        _answers[job] = time.monotonic(), answer
    return answer


def _squeue(*options: str) -> set[str] | None:
    settings = load_settings()
    answer = commands.run(
        ["squeue", "--noheader", *options],
        environ=environment.for_client(os.environ),
        timeout_s=settings.slurm_timeout_s,
    )
    if answer.ok:
        return set(answer.stdout.split())
    return set() if "Invalid job id" in answer.stderr else None


def _scancel(*arguments: str) -> None:
    """Whether it took effect shows in the step's state: scancel complains also when it did."""
    commands.run(
        ["scancel", *arguments],
        environ=environment.for_client(os.environ),
        timeout_s=load_settings().slurm_timeout_s,
    )

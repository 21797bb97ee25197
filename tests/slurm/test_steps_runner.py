"""The runner of steps by itself: its scripts are plain programs in place of srun."""

from __future__ import annotations

import gc
import os
import signal
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.errors import UsageError
from slurmmesh.slurm.steps.job import StepJob
from slurmmesh.slurm.steps.paths import StepPaths
from slurmmesh.slurm.steps.runner import RUNNER, Runner, Step

MakeStep = Callable[..., Step]


@pytest.fixture
def make(tmp_path: Path) -> MakeStep:
    """``make("exit 3")``: a step whose script is this."""
    count = 0

    def step(script: str, supervised: bool = False) -> Step:
        nonlocal count
        count += 1
        paths = StepPaths(tmp_path, f"12.{count}.abc", 0)
        paths.folder.mkdir(parents=True, exist_ok=True)
        paths.submission_file.write_text(f"{script}\n")
        return Step(paths, 1, dict(os.environ), supervised=supervised, awaited=False)

    return step


def test_steps_alike_are_not_the_same(make: MakeStep) -> None:
    first, second = make("true"), make("true")
    second.paths = first.paths
    second.over = first.over
    assert first != second
    assert len({first, second}) == 2


@pytest.mark.slow
def test_a_step_that_is_over_is_known_while_somebody_holds_its_job(
    make: MakeStep, tmp_path: Path
) -> None:
    step = make("exit 3", supervised=True)
    gone = weakref.ref(step)
    RUNNER.submit(step)
    job: StepJob[int] = StepJob(tmp_path, step.tag)
    assert step.over.wait(60)
    assert not step.environ  # it would be one for each
    tag = step.tag
    del step
    gc.collect()
    assert job.poll() == 3
    assert job.state == "FAILED"
    again: StepJob[int] = StepJob(tmp_path, tag)
    assert again.poll() == 3
    del job, again
    gc.collect()
    assert gone() is None
    assert RUNNER.find(tag) is None
    # Its files still tell.
    assert StepJob(tmp_path, tag).state == "FAILED"


def test_others_go_on_while_a_step_is_being_killed(make: MakeStep) -> None:
    runner = Runner()
    step = make("exec sleep 60")
    runner.submit(step)
    assert step.process is not None
    asked, may_end = threading.Event(), threading.Event()
    wait = step.process.wait

    def slow(timeout: float | None = None) -> int:
        asked.set()
        assert may_end.wait(60)
        return wait(timeout)

    step.process.wait = slow  # type: ignore[method-assign]
    killer = threading.Thread(target=runner.kill, args=[step])
    killer.start()
    assert asked.wait(60)
    other = make("exit 0")
    runner.submit(other)
    assert other.over.wait(60)
    may_end.set()
    killer.join(60)
    assert step.over.wait(60)
    assert step.state == "CANCELLED"
    assert step.code == -signal.SIGKILL


def test_a_step_left_alone_with_signals_is_interrupted_at_once(make: MakeStep) -> None:
    runner = Runner()
    step = make("trap 'exit 5' USR2; touch ready; read <>fifo", supervised=False)
    script = step.paths.submission_file
    os.mkfifo(script.parent / "fifo")
    script.write_text(f"cd {script.parent}\n{script.read_text()}")
    runner.submit(step)
    while not (script.parent / "ready").exists():
        assert not step.over.wait(0.01)
    runner.interrupt(step, timeout=False)
    assert step.over.wait(30)  # less than a supervised step is given to heed signals
    assert step.code == 5
    with pytest.raises(UsageError, match="nothing to interrupt"):
        runner.interrupt(step, timeout=False)

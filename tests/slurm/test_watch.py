"""Watching jobs and arrays: what is concluded from each word of Slurm and each record.

Slurm's words are put into the mouth of a stand-in for the client: no real Slurm can be made to say
them in such an order.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import SubmitError
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.life import CONFIRM_FOR_S, Life, Need
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.watch import JobWatch

RUNNING = JobInfo(JobState.RUNNING, nodes="node[1-2]", batch_host="node1")
WITHOUT_HEAD = JobInfo(JobState.RUNNING, nodes="node2", batch_host="node1")
PENDING = JobInfo(JobState.PENDING, reason="Resources")
STUCK = JobInfo(JobState.PENDING, reason="DependencyNeverSatisfied")
DONE = JobInfo(JobState.COMPLETED)


def ended(folder: Path, code: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "job.json").write_text(json.dumps({"exit_code": code}))


@dataclass
class Mouth:
    """Stands in for the client: says what it is told to, and notes what it is asked to do."""

    says: dict[str, JobInfo] | None = field(default_factory=dict)
    done: list[str] = field(default_factory=list)

    def jobs(self, refs: Iterable[JobRef]) -> dict[JobRef, JobInfo]:
        if self.says is None:
            raise SubmitError("Slurm is away")
        return {JobRef(name): info for name, info in self.says.items()}

    def job(self, ref: JobRef) -> JobInfo | None:
        return self.jobs([ref]).get(ref)

    def cancel(self, ref: JobRef) -> None:
        self.done.append(f"cancel {ref}")

    def requeue(self, ref: JobRef) -> None:
        self.done.append(f"requeue {ref}")


Watching = Callable[..., tuple[JobWatch, Mouth, list[str]]]


@pytest.fixture
def watching(tmp_path: Path) -> Watching:
    def make(**options: Any) -> tuple[JobWatch, Mouth, list[str]]:
        mouth, told = Mouth(), []
        job = SlurmJob("x.py", id="5", job_root=tmp_path, chdir=tmp_path, **options)
        return JobWatch(cast(SlurmClient, mouth), job, told.append), mouth, told

    return make


def is_over(watch: JobWatch) -> bool:
    watch._next_question = 0.0  # without the pause between two questions
    return watch.is_over()


# ------------------------------------------------------------------ one life


def test_an_end_needs_a_word_or_time(tmp_path: Path) -> None:
    life = Life("5", tmp_path, requeue=False)
    assert life.hear(RUNNING) is Need.NOTHING
    life.conclude(0.0, True)
    assert life.outcome is None
    ended(life.attempt, 3)
    assert life.has_record_of_end(1.0)
    life.hear(RUNNING)
    life.conclude(1.0 + CONFIRM_FOR_S, True)
    assert life.outcome is None
    life.conclude(1.1 + CONFIRM_FOR_S, False)
    assert life.outcome is not None
    assert life.outcome.exit_code == 3


def test_the_record_of_an_attempt_is_not_the_end_of_a_job_that_goes_on(tmp_path: Path) -> None:
    life = Life("5", tmp_path, requeue=True)
    life.hear(RUNNING)
    ended(life.attempt, 143)
    assert life.has_record_of_end(0.0)
    life.hear(JobInfo(JobState.COMPLETING, nodes="node1"))
    life.conclude(1000.0, True)
    assert life.outcome is None
    life.hear(JobInfo(JobState.PENDING, reason="BeginTime", restarts=1))
    life.conclude(2000.0, True)
    assert life.outcome is None
    assert life.attempt == tmp_path / "attempt-1"
    assert not life.has_record_of_end(2000.0)
    ended(life.attempt, 0)
    life.hear(JobInfo(JobState.COMPLETED, restarts=1))
    life.conclude(2000.0, True)
    assert life.outcome is not None
    assert life.outcome.exit_code == 0


def test_only_a_node_that_was_there_can_be_lost(tmp_path: Path) -> None:
    life = Life("5", tmp_path, requeue=False)
    assert life.hear(WITHOUT_HEAD) is Need.NOTHING
    assert life.hear(RUNNING) is Need.NOTHING
    assert life.hear(WITHOUT_HEAD) is Need.FREE


def test_what_slurm_forgets_before_it_ended_is_not_judged_by_its_last_word(tmp_path: Path) -> None:
    life = Life("5_1", tmp_path, requeue=False)
    life.hear(PENDING)
    life.hear(None)
    life.conclude(0.0, True)
    assert life.outcome is not None
    assert "Slurm does not know it any more" in life.outcome.message


WORDS = st.one_of(
    st.none(), st.builds(JobInfo, st.sampled_from(JobState), restarts=st.integers(0, 2))
)


@given(st.lists(st.tuples(WORDS, st.booleans())))
def test_no_order_of_words_makes_a_success_of_what_nobody_vouches_for(
    tmp_path_factory: pytest.TempPathFactory, words: list[tuple[JobInfo | None, bool]]
) -> None:
    life = Life("5", tmp_path_factory.mktemp("job"), requeue=True)
    now = 0.0
    for info, answered in words:
        now += 100.0
        if answered:
            life.hear(info)
        life.conclude(now, answered)
        if life.outcome is not None:
            break
    if life.outcome is not None and life.outcome.exit_code == 0:
        assert life.info is not None
        assert life.info.state is JobState.COMPLETED


# ------------------------------------------------------------------ the watch


def test_a_job_that_can_never_start_is_cancelled(watching: Watching) -> None:
    watch, mouth, _ = watching()
    mouth.says = {"5": STUCK}
    with pytest.raises(SubmitError, match="can never start, so it was cancelled"):
        watch.look()
    assert mouth.done == ["cancel 5"]


def test_a_task_that_can_never_start_leaves_the_others(watching: Watching, tmp_path: Path) -> None:
    watch, mouth, told = watching(array="0-3")
    mouth.says = {"5_0": RUNNING, "5_1": STUCK, "5_2": STUCK, "5_3": RUNNING}
    assert not is_over(watch)
    assert mouth.done == ["cancel 5_[1,2]"]
    assert any(line.startswith("job 5_1 can never start: ") for line in told)
    for task in (0, 3):
        ended(tmp_path / f"5_{task}" / "attempt-0", 0)
    mouth.says = {"5_0": DONE, "5_3": DONE}
    assert is_over(watch)
    assert watch.outcome is not None
    assert watch.outcome.exit_code == 3
    assert watch.outcome.message.startswith("job 5: 2 of 4 tasks failed (2 with code 3); the first")
    assert mouth.done == ["cancel 5_[1,2]"]


@pytest.mark.parametrize(("requeue", "did"), [(False, "cancel 5_1"), (True, "requeue 5_1")])
def test_a_task_without_its_controllers_node_is_freed(
    watching: Watching, requeue: bool, did: str
) -> None:
    watch, mouth, told = watching(array="1-2", requeue=requeue)
    mouth.says = {"5_1": RUNNING, "5_2": RUNNING}
    assert not is_over(watch)
    mouth.says = {"5_1": WITHOUT_HEAD, "5_2": RUNNING}
    assert not is_over(watch)
    assert mouth.done == [did]
    assert any("node1, on which its controller ran, is down: job 5_1" in line for line in told)
    mouth.says = {"5_2": DONE}
    if not requeue:
        assert is_over(watch)
        assert watch.outcome is not None
        assert watch.outcome.exit_code == 4


def test_silence_ends_nothing(watching: Watching) -> None:
    watch, mouth, told = watching()
    mouth.says = None
    assert not is_over(watch)
    assert not is_over(watch)
    assert told == ["Slurm is away; the job does not need it, so the watch goes on"]


def test_a_lost_controller_of_one_job(watching: Watching) -> None:
    watch, mouth, _ = watching()
    mouth.says = {"5": RUNNING}
    assert not is_over(watch)
    mouth.says = {"5": WITHOUT_HEAD}
    assert is_over(watch)
    assert mouth.done == ["cancel 5"]
    assert watch.outcome is not None
    assert watch.outcome.message == "job 5 lost the node that its controller ran on"

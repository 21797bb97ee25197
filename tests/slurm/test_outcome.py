"""How a job ended, by what its folder and Slurm say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.record import JobRecord, read_record
from slurmmesh.slurm.client import JobInfo
from slurmmesh.slurm.outcome import (
    explain_waiting,
    judge,
    never_starts,
)
from slurmmesh.slurm.states import JobState

COMPLETED = JobInfo(JobState.COMPLETED, nodes="n1")


@pytest.mark.parametrize(
    ("info", "code", "exit_code", "words"),
    [
        (COMPLETED, 0, 0, "ended well"),
        (JobInfo(JobState.FAILED, nodes="n1", exit_code=7), 7, 7, "exit code 7"),
        (JobInfo(JobState.CANCELLED), None, 4, "while it was waiting"),
        (JobInfo(JobState.CANCELLED, nodes="n1"), 143, 4, "was cancelled"),
        (JobInfo(JobState.CANCELLED, nodes="n1"), 0, 4, "ended well before"),
        (JobInfo(JobState.TIMEOUT, nodes="n1"), 143, 4, "--time"),
        (JobInfo(JobState.OUT_OF_MEMORY, nodes="n1", exit_code=0, signal=9), None, 4, "memory"),
        (JobInfo(JobState.NODE_FAIL, nodes="n1"), None, 4, "lost the node"),
        (JobInfo(JobState.PREEMPTED, nodes="n1"), 143, 7, "preempted"),
        (JobInfo(JobState.FAILED, nodes="n1", signal=9), None, 137, "without a record"),
        (JobInfo(JobState.FAILED, nodes="n1"), None, 4, "without a record"),
        (COMPLETED, None, 0, "no record"),
        (COMPLETED, 3, 3, "but Slurm says COMPLETED"),
        (JobInfo(JobState.FAILED, nodes="n1", exit_code=9), 0, 9, "but Slurm says FAILED"),
        (JobInfo(JobState.COMPLETING, nodes="n1"), 0, 0, "ended well"),
        (None, 0, 0, "ended well"),
        (None, 5, 5, "exit code 5"),
        (None, None, 4, "is gone"),
        (JobInfo(JobState.UNKNOWN), None, 4, "is gone"),
    ],
)
def test_judges(info: JobInfo | None, code: int | None, exit_code: int, words: str) -> None:
    outcome = judge("12", info, JobRecord(code))
    assert outcome.exit_code == exit_code
    assert words in outcome.message
    assert outcome.message.startswith("job 12 ") or outcome.message.startswith("job 12:")


@given(
    st.sampled_from(list(JobState)),
    st.integers(0, 255),
    st.integers(0, 64),
    st.one_of(st.none(), st.integers(0, 255)),
)
def test_success_needs_a_witness_and_no_objection(
    state: JobState, slurm_code: int, signal: int, code: int | None
) -> None:
    info = JobInfo(state, nodes="n1", exit_code=slurm_code, signal=signal)
    if judge("12", info, JobRecord(code)).exit_code == 0:
        assert code == 0 or (code is None and state is JobState.COMPLETED)
        assert state is JobState.COMPLETED or not state.is_over


def test_reads_the_record_of_a_folder(tmp_path: Path) -> None:
    assert read_record(tmp_path) is None
    path = tmp_path / "job.json"
    for text, record in [
        ("", None),
        ("[1]", None),
        ('{"job_id": "12"', None),
        ('{"job_id": "12"}', JobRecord(None)),
        ('{"exit_code": "x"}', JobRecord(None)),
        (json.dumps({"exit_code": 3}), JobRecord(3)),
        (json.dumps({"exit_code": -1}), JobRecord(255)),
    ]:
        path.write_text(text)
        assert read_record(tmp_path) == record


@pytest.mark.parametrize(
    ("reason", "never"),
    [
        ("PartitionNodeLimit", False),
        ("BadConstraints", True),
        ("PartitionConfig", True),
        ("Resources", False),
        ("JobHeldUser", False),
        ("Priority", False),
        ("ReqNodeNotAvail, UnavailableNodes:node1", False),
        ("SomethingNew", False),
    ],
)
def test_tells_why_a_job_waits(reason: str, never: bool) -> None:
    info = JobInfo(JobState.PENDING, reason)
    assert never_starts(info) is never
    assert reason in explain_waiting(info)


def test_only_a_waiting_job_never_starts() -> None:
    assert not never_starts(JobInfo(JobState.FAILED, "BadConstraints"))

"""How a job is, from what Slurm says and what its folder tells."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.record import JobRecord, write_record
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.status import (
    JobStatus,
    is_another,
    of_folder,
    status_of,
    status_of_parts,
    tasks_of,
)

RUNNING = JobInfo(JobState.RUNNING, nodes="n[1-2]", batch_host="n1")
ENDED_WELL = JobRecord(0)


@pytest.mark.parametrize(
    ("info", "record", "state", "code", "words"),
    [
        (RUNNING, None, "RUNNING", None, ""),
        (RUNNING, JobRecord(), "RUNNING", None, ""),
        (replace(RUNNING, nodes="n2"), JobRecord(), "RUNNING", None, "n1, on which its controller"),
        (replace(RUNNING, nodes="n[2"), JobRecord(), "RUNNING", None, ""),
        (JobInfo(JobState.PENDING, "Priority"), None, "PENDING", None, "higher priority"),
        # Requeued: the record is that of the attempt before.
        (JobInfo(JobState.PENDING, "BeginTime"), JobRecord(143), "PENDING", None, "begin time"),
        (JobInfo(JobState.COMPLETED, nodes="n1"), ENDED_WELL, "COMPLETED", 0, "ended well"),
        (JobInfo(JobState.COMPLETED, nodes="n1"), None, "COMPLETED", 0, "no record"),
        (JobInfo(JobState.COMPLETED, nodes="n1"), JobRecord(3), "FAILED", 3, "says COMPLETED"),
        (JobInfo(JobState.FAILED, nodes="n1", exit_code=7), JobRecord(7), "FAILED", 7, "code 7"),
        (JobInfo(JobState.FAILED, nodes="n1", exit_code=9), ENDED_WELL, "FAILED", 9, "FAILED"),
        (JobInfo(JobState.TIMEOUT, nodes="n1"), JobRecord(143), "TIMEOUT", 143, "time limit"),
        (JobInfo(JobState.CANCELLED), None, "CANCELLED", None, "while it was waiting"),
        (JobInfo(JobState.UNKNOWN), ENDED_WELL, "COMPLETED", 0, "ended well"),
        (JobInfo(JobState.REVOKED), None, "REVOKED", None, "another cluster of the federation"),
        (JobInfo(JobState.REVOKED), JobRecord(3), "FAILED", 3, "exit code 3"),
        (None, ENDED_WELL, "COMPLETED", 0, "ended well"),
        (None, JobRecord(5), "FAILED", 5, "exit code 5"),
        (None, JobRecord(), "UNKNOWN", None, "no record of its end"),
        (None, None, "UNKNOWN", None, "nothing tells of a start"),
    ],
)  # fmt: skip
def test_two_witnesses(
    info: JobInfo | None, record: JobRecord | None, state: str, code: int | None, words: str
) -> None:
    status = status_of("12", info, record)
    assert (status.state.value, status.exit_code) == (state, code)
    assert words in status.why
    assert "job 12" not in status.why


def test_a_state_that_is_not_known_here_is_still_slurms_word() -> None:
    for record in (None, JobRecord()):
        status = status_of("12", replace(RUNNING, state=JobState.UNKNOWN, restarts=2), record)
        assert (status.state, status.by_slurm) == (JobState.UNKNOWN, True)
        assert (status.nodes, status.restarts) == (RUNNING.nodes, 2)
        assert "not known here" in status.why


def test_slurms_silence_is_told() -> None:
    assert status_of("1", None, None, silence="it is down").why.startswith("it is down, and ")
    assert status_of("1", None, ENDED_WELL, silence="it is down").state is JobState.COMPLETED


@given(
    st.one_of(
        st.none(),
        st.builds(
            JobInfo,
            st.sampled_from(list(JobState)),
            st.sampled_from(["", "None", "Priority", "x"]),
            st.sampled_from(["", "n1", "n[1"]),
            st.integers(0, 255),
            st.integers(0, 64),
        ),
    ),
    st.one_of(st.none(), st.builds(JobRecord, st.one_of(st.none(), st.integers(0, 255)))),
)
def test_success_is_never_a_guess(info: JobInfo | None, record: JobRecord | None) -> None:
    status = status_of("12", info, record)
    if status.state is not JobState.COMPLETED:
        return
    slurm_agrees = info is not None and info.state.is_success
    by_record = record is not None and record.exit_code == 0
    untold = (JobState.UNKNOWN, JobState.REVOKED)
    slurm_knows = info is not None and info.state not in untold
    assert slurm_agrees if slurm_knows else by_record
    assert status.exit_code == 0


def parts(*states: JobState) -> JobStatus:
    return status_of_parts({f"1_{n}": JobStatus(state) for n, state in enumerate(states)})


def test_an_array_is_told_by_the_task_that_matters_most() -> None:
    done, failed, runs = JobState.COMPLETED, JobState.FAILED, JobState.RUNNING
    waits, unknown = JobState.PENDING, JobState.UNKNOWN
    assert parts(done, failed, waits, runs).state is runs
    assert parts(done, failed, waits, unknown).state is waits
    assert parts(done, unknown, failed).state is failed
    assert parts(done, unknown).state is unknown
    assert parts(done, done).state is done
    assert parts().state is unknown
    assert "2 COMPLETED, 1 FAILED" in parts(done, done, failed).why


def test_the_record_is_that_of_the_attempt_slurm_is_at(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    for number, code in enumerate([1, 0]):
        (folder / f"attempt-{number}").mkdir(parents=True)
        write_record(folder / f"attempt-{number}", {"exit_code": code})
    info = JobInfo(JobState.COMPLETED, nodes="n1", restarts=1)
    assert of_folder("7", info, folder).state is JobState.COMPLETED
    gone = of_folder("7", None, folder)
    assert (gone.state, gone.restarts) == (JobState.COMPLETED, 1)


def test_a_later_job_of_the_same_number_is_another(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    (folder / "attempt-0").mkdir(parents=True)
    write_record(folder / "attempt-0", {"exit_code": 3})
    (folder / "submit.json").write_text(json.dumps({"submitted": 1000.0}))
    later = JobInfo(JobState.RUNNING, nodes="n1", submitted=100_000.0)
    status = of_folder("7", later, folder)
    assert (status.state, status.by_slurm) == (JobState.FAILED, False)
    assert is_another(later, 1000.0)
    assert not is_another(later, 99_950.0)
    assert not is_another(replace(later, restarts=1), 1000.0)  # a requeue sets the time anew
    assert not is_another(later, None)


def test_the_tasks_of_an_array(tmp_path: Path) -> None:
    folder = tmp_path / "7"
    folder.mkdir()
    (tmp_path / "7_0").mkdir()
    (tmp_path / "7_x").mkdir()
    (tmp_path / "77_1").mkdir()
    (folder / "submit.json").write_text(json.dumps({"options": {"array": "0-2%1"}}))
    info = JobInfo(JobState.PENDING)
    found = {JobRef("7_2"): info, JobRef("7"): info}
    assert tasks_of(folder, found) == {"7_0": None, "7_1": None, "7_2": info}
    (folder / "submit.json").write_text(json.dumps({"options": {"array": "rubbish"}}))
    assert tasks_of(folder, {}) == {"7_0": None}
    assert tasks_of(tmp_path / "gone" / "8", {}) == {}

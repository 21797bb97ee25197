"""Tables of squeue and sacct, whatever stands in them and around them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurmmesh.slurm import marked
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.jobinfo import JobInfo, exit_status, leading
from slurmmesh.slurm.queries import (
    SACCT_COLUMNS,
    SQUEUE_COLUMNS,
    STEP_COLUMNS,
    is_up,
    parse_node_addresses,
    parse_node_names,
    parse_partition_sizes,
    parse_sacct,
    parse_squeue,
    parse_steps,
)
from slurmmesh.slurm.states import JobState

MARK = "~0123456789ab~"
RUNNING = {
    **dict.fromkeys(SQUEUE_COLUMNS, ""),
    "JobID": "7",
    "ArrayJobID": "7",
    "ArrayTaskID": "N/A",
    "HetJobID": "N/A",
    "HetJobOffset": "N/A",
    "State": "RUNNING",
    "Reason": "None",
    "NodeList": "n[1-2]",
    "exit_code": "0",
    "RestartCnt": "1",
    "BatchHost": "n1",
    "UserName": "me",
    "Account": "(null)",
    "Partition": "main",
    "QOS": "normal",
    "NumNodes": "2",
    "TimeUsed": "1:05",
    "TimeLimit": "2-12:00:00",
    "SubmitTime": "1796021252",
    "StartTime": "1796021253",
    "EndTime": "N/A",
    "WorkDir": "/a b",
    "STDOUT": "/a b/%j.out",
    "Requeue": "1",
    "Cluster": "lab",
    "Name": "train",
}


def table(columns: tuple[str, ...], *rows: Mapping[str, str]) -> str:
    lines = [dict(zip(columns, columns, strict=True)), *rows]
    return "".join(
        "".join(f"{line[name]}{MARK}" for name in (columns[0], *columns)) + "\n" for line in lines
    )


def squeue(*rows: Mapping[str, str]) -> str:
    return table(SQUEUE_COLUMNS, *rows)


def test_reads_all_that_squeue_tells() -> None:
    assert parse_squeue(squeue(RUNNING), MARK) == {
        JobRef("7"): JobInfo(
            state=JobState.RUNNING,
            reason="None",
            nodes="n[1-2]",
            restarts=1,
            batch_host="n1",
            raw_id="7",
            name="train",
            user="me",
            partition="main",
            qos="normal",
            node_count=2,
            time_used_s=65.0,
            time_limit_s=216000.0,
            submitted=1796021252.0,
            started=1796021253.0,
            work_dir="/a b",
            stdout="/a b/%j.out",
            requeue=True,
            cluster="lab",
        )
    }


@pytest.mark.parametrize(
    ("cells", "refs"),
    [
        ({"ArrayJobID": "5", "ArrayTaskID": "3"}, ["5_3"]),
        ({"ArrayJobID": "5", "ArrayTaskID": "1-3,7%2"}, ["7"]),  # -r never gives this
        ({"ArrayJobID": "5", "ArrayTaskID": "1-3,7"}, ["5_1", "5_2", "5_3", "5_7"]),
        ({"ArrayJobID": "5", "ArrayTaskID": "1,3,..."}, ["7"]),
        ({"HetJobID": "6", "HetJobOffset": "1"}, ["6+1"]),
        ({"HetJobID": "0"}, ["7"]),
    ],
)
def test_whose_row_it_is(cells: dict[str, str], refs: list[str]) -> None:
    jobs = parse_squeue(squeue({**RUNNING, **cells}), MARK, "c")
    assert jobs is not None
    assert list(jobs) == [JobRef(ref, "c") for ref in refs]
    assert {info.raw_id for info in jobs.values()} == {"7"}


@pytest.mark.parametrize(
    ("column", "cell", "field", "value"),
    [
        ("State", "BRAND_NEW", "state", JobState.UNKNOWN),
        ("exit_code", "768", "exit_code", 3),
        ("exit_code", "9", "signal", 9),
        ("exit_code", "3:0", "exit_code", 3),
        ("exit_code", "?", "exit_code", 0),
        ("TimeLimit", "UNLIMITED", "time_limit_s", math.inf),
        ("TimeLimit", "NOT_SET", "time_limit_s", None),
        ("TimeUsed", "INVALID", "time_used_s", None),
        ("TimeUsed", "brand new", "time_used_s", None),
        ("NumNodes", "2-4", "node_count", 2),
        ("NumNodes", "", "node_count", 0),
        ("Requeue", "0", "requeue", False),
        ("RestartCnt", "?", "restarts", 0),
        ("StartTime", "2026-11-30T06:47:32", "name", "train"),
        ("Reason", "a, b (c|d)", "reason", "a, b (c|d)"),
    ],
)
def test_reads_odd_cells(column: str, cell: str, field: str, value: object) -> None:
    jobs = parse_squeue(squeue({**RUNNING, column: cell}), MARK)
    assert jobs is not None
    assert getattr(jobs[JobRef("7")], field) == value


@pytest.mark.parametrize(
    ("rows", "nodes"),
    [
        ([("REVOKED", "None", "a"), ("RUNNING", "None", "b")], "b"),
        ([("RUNNING", "None", "a"), ("REVOKED", "None", "b")], "a"),
        ([("REVOKED", "None", "a"), ("FAILED", "NonZeroExitCode", "b")], "b"),
        ([("PENDING", "Priority", "a"), ("PENDING", "Resources", "b")], "a"),
        ([("PENDING", "BadConstraints", "a"), ("PENDING", "Resources", "b")], "b"),
        ([("PENDING", "Priority", "a"), ("CONFIGURING", "None", "b"), ("RUNNING", "", "c")], "c"),
        ([("REVOKED", "None", "a")], "a"),
    ],
)
def test_of_the_siblings_of_a_federated_job_one_counts(
    rows: list[tuple[str, str, str]], nodes: str
) -> None:
    names = ("State", "Reason", "NodeList")
    table = [{**RUNNING, **dict(zip(names, row, strict=True))} for row in rows]
    jobs = parse_squeue(squeue(*table), MARK)
    assert jobs is not None
    assert [info.nodes for info in jobs.values()] == [nodes]


@given(st.text(max_size=20), st.text(max_size=20))
def test_no_banner_is_a_step(before: str, after: str) -> None:
    rows = [{"JobID": "7", "StepID": "7_2.0"}, {"JobID": "8", "StepID": "7_1.1"}]
    text = f"{before}{table(STEP_COLUMNS, *rows)}7.9\n{after}"
    assert parse_steps(text, MARK, "7") == {"7.0"}
    assert parse_steps(text, MARK, "9") == frozenset()
    assert parse_steps(before, MARK, "7") is None


NOISE = st.text(max_size=30)


@given(
    name=st.text(max_size=40), folder=st.text(max_size=40), before=NOISE, between=NOISE, after=NOISE
)
def test_no_name_and_no_banner_upsets_a_table(
    name: str, folder: str, before: str, between: str, after: str
) -> None:
    rows = [
        {**RUNNING, "Name": name, "WorkDir": folder},
        {**RUNNING, "JobID": "8", "Name": f"7\n8{name}", "State": "PENDING"},
    ]
    head, first, second = _lines(rows)
    text = before + head + between + "\n" + first + between + second + after
    jobs = parse_squeue(text, MARK)
    assert jobs is not None
    assert [(ref.id, info.name) for ref, info in jobs.items()] == [
        ("7", name),
        ("8", f"7\n8{name}"),
    ]
    assert jobs[JobRef("7")].work_dir == folder
    assert jobs[JobRef("8")].state is JobState.PENDING


def _lines(rows: list[dict[str, str]]) -> list[str]:
    """The header and the rows, each by itself."""
    parts = [squeue(*rows[:count]) for count in range(len(rows) + 1)]
    return [parts[0], *(long[len(short) :] for short, long in itertools.pairwise(parts))]


@given(st.text())
def test_what_is_no_table_is_seen(text: str) -> None:
    assert parse_squeue(text, MARK) is None


def test_an_empty_table_is_an_answer() -> None:
    assert parse_squeue("CLUSTER: x\n" + squeue(), MARK) == {}
    assert parse_squeue(squeue() + "\nCLUSTER: y\n" + squeue(RUNNING), MARK, "y") is not None


def test_a_row_that_was_cut_off_is_left_out() -> None:
    text = squeue(RUNNING, {**RUNNING, "JobID": "8"})
    jobs = parse_squeue(text[: -3 * len(MARK)], MARK)
    assert jobs is not None
    assert list(jobs) == [JobRef("7")]


def test_marks_are_drawn_anew() -> None:
    first, second = marked.new_mark(), marked.new_mark()
    assert first != second
    assert "," not in first
    assert not first[0].isdigit()


def test_reads_what_accounting_tells_of_jobs_that_ended() -> None:
    row = {
        **dict.fromkeys(SACCT_COLUMNS, ""),
        "JobID": "7",
        "JobIDRaw": "7",
        "State": "CANCELLED by 54321",
        "ExitCode": "0:15",
        "NodeList": "None assigned",
        "TimelimitRaw": "90",
        "ElapsedRaw": "61",
        "NNodes": "2",
        "Start": "Unknown",
        "End": "1796021252",
        "JobName": "a|b\n7",
    }
    lost = {**row, "JobID": "8", "State": "RUNNING"}
    array = {**row, "JobID": "9_[1-2]", "TimelimitRaw": "Partition_Limit"}
    cut = {**row, "JobID": "9_[1,3,...]"}
    junk = {**row, "JobID": "?"}
    jobs = parse_sacct(table(SACCT_COLUMNS, row, lost, array, cut, junk), MARK, "c")
    assert [str(ref) for ref in jobs] == ["7;c", "9_1;c", "9_2;c"]
    info = jobs[JobRef("7", "c")]
    assert (info.state, info.signal, info.nodes) == (JobState.CANCELLED, 15, "")
    assert (info.time_limit_s, info.time_used_s, info.name) == (5400.0, 61.0, "a|b\n7")
    assert (info.started, info.ended) == (None, 1796021252.0)
    assert parse_sacct("Slurm accounting storage is disabled", MARK) == {}


@pytest.mark.parametrize(
    ("states", "state"),
    [
        ([], None),
        (["COMPLETED", "RUNNING", "PENDING", "FAILED"], "RUNNING"),
        (["COMPLETED", "PENDING", "FAILED"], "PENDING"),
        (["COMPLETED", "FAILED"], "FAILED"),
        (["COMPLETED", "COMPLETED"], "COMPLETED"),
        (["COMPLETED", "COMPLETING"], "COMPLETING"),
        (["COMPLETED", "UNKNOWN"], "UNKNOWN"),
    ],
)
def test_what_stands_for_the_whole(states: list[str], state: str | None) -> None:
    info = leading(JobInfo(JobState(word)) for word in states)
    assert (info.state.value if info else None) == state


@given(st.text())
@example("\N{SUPERSCRIPT ONE}")  # a digit, and no number
def test_any_exit_status(text: str) -> None:
    code, signal = exit_status(text)
    assert code >= 0
    assert signal >= 0


def test_reads_the_sizes_of_partitions() -> None:
    text = "*** banner ***\nCLUSTER: a\nmain*|4\nlow|2\nodd\nCLUSTER: b\nlow|8\nmain*|3\n"
    assert parse_partition_sizes(text) == {"main": 4, "": 4, "low": 8}


def test_reads_the_names_of_nodes() -> None:
    assert parse_node_names("hello\nn1|\nn2|\nn2|\na | b\n") == {"n1", "n2"}


def test_reads_the_addresses_of_nodes() -> None:
    text = (
        "NodeName=n1 Arch=x NodeAddr=10.0.0.1 NodeHostName=n1.org Reason=a NodeAddr=9.9.9.9 b\n"
        "NodeName=n2 NodeHostName=n2.org\nNode n3 not found\n"
    )
    assert parse_node_addresses(text) == {"n1": "10.0.0.1", "n2": "n2.org"}


@pytest.mark.parametrize(
    ("ping", "up"),
    [
        ("Slurmctld(primary) at h is UP\n", True),
        ("Slurmctld(primary) at h is DOWN\nSlurmctld(backup) at g is UP\n", True),
        ("banner: all is UP\nSlurmctld(primary) at h is DOWN\n", False),
        ("", False),
    ],
)
def test_whether_slurm_is_up(ping: str, up: bool) -> None:
    assert is_up(ping) is up

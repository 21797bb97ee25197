"""``squeue --json`` of all versions. The samples are cut down to what is read, by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.jobjson import parse_squeue_json
from slurmmesh.slurm.states import JobState

NOW = 1796021300.0


def number(value: float | None) -> dict[str, Any]:
    """As Slurm writes numbers since 23.02."""
    infinite = value == math.inf
    return {
        "set": value is not None and not infinite,
        "infinite": infinite,
        "number": 0 if value is None or infinite else value,
    }


COMMON = {
    "account": "me",
    "batch_host": "n1",
    "cluster": "lab",
    "current_working_directory": "/a b",
    "job_id": 7,
    "name": 'na|me\n"q"',
    "nodes": "n[1-2]",
    "partition": "main",
    "qos": "normal",
    "requeue": True,
    "restart_cnt": 1,
    "standard_output": "/a b/7.out",
    "state_reason": "None",
    "user_name": "me",
}
V22_05 = {
    **COMMON,
    "array_job_id": 0,
    "array_task_id": None,
    "array_task_string": "",
    "end_time": 1796021400,
    "exit_code": 0,
    "het_job_id": 0,
    "het_job_offset": 0,
    "job_resources": {"nodes": "n[1-2]", "allocated_hosts": 2},
    "job_state": "RUNNING",
    "node_count": 2,
    "start_time": 1796021253,
    "submit_time": 1796021252,
    "time_limit": 90,
}
V23_02 = {
    **V22_05,
    "array_job_id": number(0),
    "array_task_id": number(None),
    "exit_code": {"status": "SUCCESS", "return_code": 0},
    "het_job_id": number(0),
    "het_job_offset": number(0),
    "node_count": number(2),
    "time_limit": number(90),
}
V23_11 = {
    **V23_02,
    "end_time": number(1796021400),
    "exit_code": {
        "status": ["SUCCESS"],
        "return_code": number(0),
        "signal": {"id": number(None), "name": ""},
    },
    "job_state": ["RUNNING"],
    "start_time": number(1796021253),
    "submit_time": number(1796021252),
}
V24_11 = {
    **V23_11,
    "job_resources": {
        "nodes": {
            "count": 2,
            "select_type": ["CORE"],
            "list": "n[1-2]",
            "allocation": [{"name": "n1"}, {"name": "n2"}],
        }
    },
    "standard_output": "/a b/%j.out",
    "stdout_expanded": "/a b/7.out",
}
VERSIONS = {"22.05": V22_05, "23.02": V23_02, "23.11": V23_11, "24.11": V24_11}
MODERN = {name: job for name, job in VERSIONS.items() if name != "22.05"}


def read(*jobs: object, before: str = "", cluster: str = "") -> dict[JobRef, JobInfo]:
    text = json.dumps({"meta": {"Slurm": {}}, "errors": [], "jobs": list(jobs)})
    found = parse_squeue_json(before + text, NOW, cluster)
    assert found is not None
    return found


@pytest.mark.parametrize("job", VERSIONS.values(), ids=VERSIONS)
def test_all_versions_tell_the_same(job: dict[str, Any]) -> None:
    assert read(job) == {
        JobRef("7"): JobInfo(
            state=JobState.RUNNING,
            reason="None",
            nodes="n[1-2]",
            restarts=1,
            batch_host="n1",
            raw_id="7",
            name='na|me\n"q"',
            user="me",
            account="me",
            partition="main",
            qos="normal",
            node_count=2,
            time_used_s=47.0,
            time_limit_s=5400.0,
            submitted=1796021252.0,
            started=1796021253.0,
            ended=1796021400.0,
            work_dir="/a b",
            stdout="/a b/7.out",
            requeue=True,
            cluster="lab",
        )
    }


@pytest.mark.parametrize(
    ("value", "code", "signal"),
    [
        (768, 3, 0),
        (9, 0, 9),
        (number(768), 3, 0),
        ({"status": "ERROR", "return_code": 3}, 3, 0),
        (
            {"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 9, "name": "KILL"}},
            0,
            9,
        ),
        ({"status": ["ERROR"], "return_code": number(3), "signal": {"id": number(None)}}, 3, 0),
        (
            {"status": ["SIGNALED"], "return_code": number(None), "signal": {"id": number(15)}},
            *(0, 15),
        ),
        ({"status": ["PENDING"], "return_code": number(None)}, 0, 0),
        (None, 0, 0),
        ("?", 0, 0),
        ({}, 0, 0),
    ],
)
def test_exit_codes(value: object, code: int, signal: int) -> None:
    (info,) = read({**V23_11, "job_state": ["FAILED"], "exit_code": value}).values()
    assert (info.exit_code, info.signal) == (code, signal)


@pytest.mark.parametrize("job", VERSIONS.values(), ids=VERSIONS)
@pytest.mark.parametrize(
    ("fields", "refs"),
    [
        ({"array_job_id": 5, "array_task_id": 3}, ["5_3"]),
        ({"array_job_id": 5, "array_task_id": 0}, ["5_0"]),
        ({"array_job_id": 5, "array_task_id": None, "array_task_string": "1-2,7"},
         ["5_1", "5_2", "5_7"]),
        ({"array_job_id": 5, "array_task_id": None, "array_task_string": "1,3,..."}, ["5"]),
        ({"het_job_id": 6, "het_job_offset": 1}, ["6+1"]),
    ],
)  # fmt: skip
def test_parts_of_jobs(job: dict[str, Any], fields: dict[str, Any], refs: list[str]) -> None:
    if job is not V22_05:
        fields = {k: v if isinstance(v, str) else number(v) for k, v in fields.items()}
    assert list(read({**job, **fields}, cluster="c")) == [JobRef(ref, "c") for ref in refs]


@pytest.mark.parametrize(
    ("fields", "field", "value"),
    [
        ({"job_state": ["RUNNING", "COMPLETING"]}, "state", JobState.COMPLETING),
        ({"job_state": ["BRAND_NEW"]}, "state", JobState.UNKNOWN),
        ({"job_state": []}, "state", JobState.UNKNOWN),
        ({"job_state": None}, "state", JobState.UNKNOWN),
        ({"job_state": {"current": "RUNNING"}}, "state", JobState.UNKNOWN),
        ({"time_limit": number(math.inf)}, "time_limit_s", math.inf),
        ({"time_limit": number(None)}, "time_limit_s", None),
        ({"time_limit": None}, "time_limit_s", None),
        ({"job_state": ["PENDING"]}, "time_used_s", None),
        ({"end_time": number(1796021263)}, "time_used_s", 10.0),
        ({"start_time": number(0)}, "started", None),
        ({"start_time": None}, "time_used_s", None),
        ({"nodes": {"list": "n3"}}, "nodes", "n3"),
        ({"nodes": ""}, "nodes", "n[1-2]"),
        ({"nodes": "", "job_resources": {}}, "nodes", ""),
        ({"nodes": "", "job_resources": None}, "nodes", ""),
        ({"node_count": number(math.inf)}, "node_count", 0),
        ({"name": None}, "name", ""),
    ],
)
def test_single_fields(fields: dict[str, Any], field: str, value: object) -> None:
    (info,) = read({**V24_11, **fields}).values()
    assert getattr(info, field) == value


def test_banners_around_it() -> None:
    assert list(read(V22_05, before='{ welcome }\n{"jobs": 3}\n[]\n')) == [JobRef("7")]


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": 1}', "[1]", "{" * 2000, '{"jobs": [', "hi"])
def test_what_is_no_answer(text: str) -> None:
    assert parse_squeue_json(text, NOW) is None


def test_what_is_no_job_is_left_out() -> None:
    assert read(1, None, {}, {"job_id": 0}, V22_05) == read(V22_05)


VALUE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["set", "infinite", "number", "id", "list"]), inner)
    ),
    max_leaves=5,
)


@given(st.dictionaries(st.sampled_from(sorted(V24_11)), VALUE))
@example({"array_job_id": {"infinite": True}})
@example({"array_job_id": 5, "array_task_id": {"infinite": True}})
@example({"job_id": 10**400})
@example({"time_limit": 10**400})
def test_whatever_a_newer_slurm_writes(fields: dict[str, Any]) -> None:
    for info in read({**V24_11, **fields}).values():
        assert not info.state.is_success or "job_state" in fields

"""Tables as sacct prints them."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.jobs.known import KnownJob
from slurmmesh.jobs.overview import Overview
from slurmmesh.jobs.since import parse_since
from slurmmesh.jobs.table import FIELDS, USUAL, as_data, fit, lines, parse_format
from slurmmesh.jobs.views import View
from slurmmesh.jobs.words import tell
from slurmmesh.record import JobRecord
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.status import JobStatus

NOW = 1_800_000_000.0


def view(name: str = "train.py", **more: object) -> View:
    record = JobRecord(0, NOW - 100, NOW - 40, 4, 1, (name,))
    fields = {
        "id": "12",
        "job": KnownJob("12", Path("/nowhere/12")),
        "status": JobStatus(JobState.COMPLETED, "ended well", 0),
        "info": None,
        "record": record,
        **more,
    }
    made = View(**fields)  # type: ignore[arg-type]
    made.job.__dict__["record"] = record
    return made


def cells(format: str, **more: object) -> list[str]:
    return lines([view(**more)], parse_format(format), NOW)[-1].split()  # type: ignore[arg-type]


def test_a_table_has_a_header_a_rule_and_a_row_for_each_job() -> None:
    header, rule, row = lines([view()], parse_format("JobID,State%12,NNodes"), NOW)
    assert header == "JobID                 State NNodes"
    assert rule == "-------------- ------------ ------"
    assert row == "12                COMPLETED      5"
    assert lines([view()], parse_format("JobID"), NOW, header=False) == ["12"]


def test_widths_are_the_users() -> None:
    assert lines([view("a-long-name.py")], parse_format("JobName%6"), NOW)[-1] == "a-lon+"
    assert lines([view("ab")], parse_format("jobname%-6,state"), NOW)[-1].startswith("ab     ")
    assert lines([view("ab")], parse_format("JOBNAME%6"), NOW)[-1] == "    ab"


def test_times_and_exit_codes_are_written_as_sacct_does() -> None:
    assert cells("Elapsed,ExitCode") == ["00:01:00", "0:0"]
    killed = JobStatus(JobState.FAILED, "", 137)
    assert cells("ExitCode", status=killed) == ["0:9"]
    assert cells("ExitCode", status=JobStatus(JobState.FAILED, "", 7)) == ["7:0"]
    info = JobInfo(JobState.TIMEOUT, signal=15, exit_code=0, time_limit_s=math.inf)
    timeout = JobStatus(JobState.TIMEOUT, "", None)
    assert cells("ExitCode", status=timeout, info=info) == ["0:15"]
    unknown = JobStatus(JobState.UNKNOWN)
    assert cells("State,ExitCode,End", status=unknown) == ["UNKNOWN", "Unknown"]


def test_an_unknown_field_names_those_like_it() -> None:
    with pytest.raises(UsageError, match=r"no field 'Jobnam': did you mean JobName"):
        parse_format("JobID,Jobnam")
    with pytest.raises(UsageError, match="there are JobID, JobName"):
        parse_format("xyzzy")
    for wrong in ("", "JobID,", "JobID%", "JobID%x", "JobID 20", "%20"):
        with pytest.raises(UsageError):
            parse_format(wrong)


def test_json_has_every_field_and_no_nan() -> None:
    data = as_data(view(info=JobInfo(JobState.RUNNING, time_limit_s=math.inf)), NOW)
    assert set(data) == set(FIELDS)
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    assert {name.lower() for name in USUAL.split(",")} <= set(data)


@given(st.text(), st.integers(1, 40), st.booleans())
def test_a_cell_is_as_wide_as_its_column_and_steers_no_terminal(
    text: str, width: int, left: bool
) -> None:
    cell = fit(text, -width if left else width)
    assert len(cell) == width
    assert cell.isprintable()


@pytest.mark.parametrize(
    ("text", "ago_s"),
    [
        ("2h", 7200),
        ("now-2days", 2 * 86400),
        ("3 weeks", 21 * 86400),
        ("90s", 90),
        ("now-1minute", 60),
    ],
)
def test_how_long_ago(text: str, ago_s: float) -> None:
    assert parse_since(text, NOW) == NOW - ago_s


def test_moments() -> None:
    today = parse_since("today", NOW)
    assert 0 <= NOW - today < 86400
    assert parse_since("00:00", NOW) == today
    for clock in ("1:30", "01:30", "1:30:00", "01:30:00"):
        assert parse_since(clock, NOW) == today + 5400
    assert parse_since("9:30:15", NOW) == today + 9 * 3600 + 30 * 60 + 15
    assert parse_since("2026-11-30 10:00:05", NOW) == parse_since("2026-11-30T10:00", NOW) + 5
    assert parse_since("2026-11-30", NOW) < parse_since("2026-11-30T10:00", NOW)
    assert parse_since("yesterday", NOW) < today
    for wrong in ("", "soon", "2026-13-01", "25:00", "1:5", "now+1day", "-", "0001-01-01x"):
        with pytest.raises(UsageError, match="give a day"):
            parse_since(wrong, NOW)


def test_moments_are_the_same_for_every_python() -> None:
    """Later versions read more than 3.10 does."""
    for wrong in ("20261130", "2026-W48-1", "2026-11-30T10", "2026-11-30T10:00Z", "20261130T1000"):
        with pytest.raises(UsageError, match="give a day"):
            parse_since(wrong, NOW)


def test_the_year_that_slurm_sets_is_no_limit() -> None:
    """A job that asked for none, in a partition without a limit, gets 365 days when it starts."""
    info = JobInfo(JobState.RUNNING, time_limit_s=365 * 86400.0, started=NOW - 7, time_used_s=7)
    running = view(info=info, status=JobStatus(JobState.RUNNING))
    assert "  state       RUNNING for 00:00:07, no time limit" in tell(running, Overview(), NOW)
    assert as_data(running, NOW)["timelimit"] is None


def test_a_year_that_was_asked_for_is_one(tmp_path: Path) -> None:
    job = KnownJob("12", tmp_path / "12")
    job.folder.mkdir()
    (job.folder / "submit.json").write_text(json.dumps({"options": {"time": "365-0"}}))
    info = JobInfo(JobState.RUNNING, time_limit_s=365 * 86400.0)
    assert as_data(view(info=info, job=job), NOW)["timelimit"] == 365 * 86400

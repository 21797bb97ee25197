"""Times as Slurm writes them."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.slurm.times import check_time_limit, format_time, parse_moment, parse_time


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 1800),
        ("4:00", 240),
        ("1:30:00", 5400),
        ("2-12", 2 * 86400 + 12 * 3600),
        ("2-12:30", 2 * 86400 + 12 * 3600 + 1800),
        ("1-00:00:01", 86401),
        (" 0:90 ", 90),
        ("0", 0),
        ("UNLIMITED", math.inf),
        ("infinite", math.inf),
        ("NOT_SET", None),
        ("Partition_Limit", None),
        ("N/A", None),
        ("", None),
    ],
)
def test_parses(text: str, seconds: float | None) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "soon",
        "1:2:3:4",
        "-5",
        "1-",
        "1-1:1:1:1",
        "1.5",
        "1h",
        "٣",
        "1 2",
        "2-12\n#SBATCH",
        "9" * 5000,
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(UsageError, match="no time that Slurm understands"):
        parse_time(text)


@given(
    st.integers(0, 400), st.integers(0, 23), st.integers(0, 59), st.integers(0, 59), st.booleans()
)
def test_what_slurm_prints(days: int, hours: int, minutes: int, seconds: int, pad: bool) -> None:
    text = f"{hours:02}:{minutes:02}:{seconds:02}"
    if days or pad:
        text = f"{days}-{text}"
    assert parse_time(text) == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def test_a_limit_has_a_value() -> None:
    assert check_time_limit(" 2-12 ") == "2-12"
    assert check_time_limit("UNLIMITED") == "UNLIMITED"
    with pytest.raises(UsageError, match="leave the option out"):
        check_time_limit("NOT_SET")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "00:00:00"),
        (5400.9, "01:30:00"),
        (216000, "2-12:00:00"),
        (math.inf, "UNLIMITED"),
        (None, ""),
    ],
)
def test_writes_as_slurm_does(seconds: float | None, text: str) -> None:
    assert format_time(seconds) == text


@given(st.integers(0, 10**9))
def test_what_is_written_can_be_read(seconds: int) -> None:
    assert parse_time(format_time(seconds)) == seconds


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("1796021252", 1796021252.0),
        ("2026-11-30T06:47:32", 1796021252.0),
        ("N/A", None),
        ("Unknown", None),
        ("0", None),
        ("", None),
        ("tomorrow", None),
        ("0000-00-00T00:00:00", None),
    ],
)
def test_moments(monkeypatch: pytest.MonkeyPatch, text: str, moment: float | None) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert parse_moment(text) == moment
    finally:
        monkeypatch.undo()
        time.tzset()

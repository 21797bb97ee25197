"""Times as Slurm writes them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.slurm.times import check_time_limit, parse_time


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
    "text", ["soon", "1:2:3:4", "-5", "1-", "1-1:1:1:1", "1.5", "1h", "٣", "1 2", "2-12\n#SBATCH"]
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

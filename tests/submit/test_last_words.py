"""What is quoted of a failed job's log."""

from __future__ import annotations

from pathlib import Path

import pytest

from slurmmesh.submit.last_words import last_words


@pytest.mark.parametrize(
    ("log", "told"),
    [
        (b"", ""),
        (b"\n \n\x1b\n", ""),
        (b"step 1\nValueError: no\n\n", "its last line: ValueError: no"),
        (b"10%\r20%\r\n", "its last line: 20%"),
        (b"slurmmesh: error: first\nslurmmesh: error: two\x1b[2J\nbye\n", "its error: two [2J"),
        (b"\xff" * 100_000 + b"\nend", "its last line: end"),
    ],
)
def test_the_line_that_tells_why(tmp_path: Path, log: bytes, told: str) -> None:
    (tmp_path / "log").write_bytes(log)
    assert last_words(tmp_path / "log") == told


def test_no_log_has_no_words(tmp_path: Path) -> None:
    assert last_words(tmp_path / "log") == ""

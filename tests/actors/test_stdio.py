"""Levels of logging on the pipes of a proc: marked, and taken off again."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.actors.marks import MARK, read_mark, with_marks

text = st.text(st.characters(exclude_characters="\x1e\n", exclude_categories=["Cs"]))


@given(st.lists(text, min_size=1), st.integers(-5, 20_000))
def test_marks_come_off_again(lines: list[str], level: int) -> None:
    marked = with_marks("\n".join(lines) + "\n", level).encode()
    *found, rest = marked.split(b"\n")
    assert rest == b""
    assert [read_mark(line) for line in found] == [
        (min(max(level, 0), 9999), line.encode()) for line in lines
    ]


@given(st.binary())
def test_a_line_without_a_mark_is_left_alone(line: bytes) -> None:
    level, left = read_mark(line)
    assert MARK in line or (level, left) == (None, line)


def test_a_mark_in_the_middle_is_no_level_but_does_not_stay() -> None:
    assert read_mark(b"half a line of C\x1e30\x1fand a record") == (
        None,
        b"half a line of Cand a record",
    )


PRELUDE = """
import logging, os, sys
from slurmmesh.actors.stdio import mark_levels, use_rank_streams, write_from
use_rank_streams()
early = logging.StreamHandler()
mark_levels()
"""


def run(code: str) -> tuple[list[tuple[int | None, bytes]], list[tuple[int | None, bytes]]]:
    """Lines of stdout and of stderr of a process with such streams, each with its level."""
    done = subprocess.run([sys.executable, "-c", PRELUDE + code], capture_output=True)
    assert done.returncode == 0, done.stderr
    out, err = (
        [read_mark(line) for line in text.splitlines()] for text in (done.stdout, done.stderr)
    )
    return out, err


def test_records_have_levels_whoever_writes_them_and_prints_have_none() -> None:
    out, err = run(
        """
logging.getLogger("a").warning("by Python itself")
logging.basicConfig(format="%(levelname)s %(message)s", level=logging.DEBUG)
logging.debug("quiet")
logging.error("two\\nlines")
logging.getLogger("lib").addHandler(early)
logging.getLogger("lib").propagate = False
logging.getLogger("lib").info("a library's own handler")
logging.getLogger("out").addHandler(logging.StreamHandler(sys.stdout))
logging.getLogger("out").propagate = False
logging.getLogger("out").critical("on stdout")
print("print")
print("half", end=" ")
logging.getLogger("out").critical("a line")
print("print", file=sys.stderr)
os.write(2, b"C\\n")
"""
    )
    assert err == [
        (30, b"by Python itself"),
        (10, b"DEBUG quiet"),
        (40, b"ERROR two"),
        (40, b"lines"),
        (20, b"a library's own handler"),
        (None, b"print"),
        (None, b"C"),
    ]
    assert out == [(50, b"on stdout"), (None, b"print"), (None, b"half a line")]


def test_the_users_level_stays_and_warnings_are_always_written() -> None:
    _, err = run(
        """
log = logging.getLogger("a")
log.info("not yet")
write_from(logging.INFO); log.info("now")
write_from(logging.ERROR); log.info("no more"); log.warning("still")
write_from(logging.DEBUG); log.debug("all")
logging.getLogger().setLevel(logging.ERROR)
write_from(logging.DEBUG); log.warning("the program said so"); log.error("end")
"""
    )
    assert err == [(20, b"now"), (30, b"still"), (10, b"all"), (40, b"end")]


def test_what_a_program_turns_into_its_own_file_is_as_it_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "own"
    _, err = run(
        f"""
file = os.open({str(path)!r}, os.O_CREAT | os.O_WRONLY)
before = os.dup(2)
os.dup2(file, 2)
logging.error("in a file")
os.dup2(before, 2)
logging.error("in the pipe")
"""
    )
    assert path.read_text() == "ERROR:root:in a file\n"
    assert err == [(40, b"ERROR:root:in the pipe")]


def test_this_process_is_as_it_was() -> None:
    assert logging.Handler.handle.__module__ == "logging"
    assert os.isatty(1) in (True, False)

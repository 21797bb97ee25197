"""Reading files that grow, vanish, shrink and break."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.telemetry.tail import EventTail, LineTail, find_event_log


def append(path: Path, data: bytes) -> None:
    with open(path, "ab") as file:
        file.write(data)


def test_a_file_that_is_not_there_yet_has_no_lines(tmp_path: Path) -> None:
    tail = LineTail(tmp_path / "later" / "log")
    assert tail.read() == []
    assert tail.at_end
    (tmp_path / "later").mkdir()
    append(tmp_path / "later" / "log", b"one\n")
    assert tail.read() == ["one"]


def test_a_line_comes_out_once_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LineTail(path)
    append(path, b"one\ntw")
    assert tail.read() == ["one"]
    append(path, b"o")
    assert tail.read() == []
    append(path, b"\n\nthree")
    assert tail.read() == ["two", ""]
    assert tail.rest() == "three"
    assert tail.rest() == ""


def test_a_truncated_file_is_read_again_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LineTail(path)
    append(path, b"a long first line\nand half of")
    assert tail.read() == ["a long first line"]
    os.truncate(path, 0)
    append(path, b"new\n")
    assert tail.read() == ["new"]


def test_a_replaced_file_is_read_from_its_start(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LineTail(path)
    append(path, b"old\n")
    assert tail.read() == ["old"]
    append(tmp_path / "other", b"new one\nnew two\n")
    os.replace(tmp_path / "other", path)
    assert tail.read() == ["new one", "new two"]


def test_a_line_without_an_end_comes_in_pieces(tmp_path: Path) -> None:
    path = tmp_path / "log"
    tail = LineTail(path, longest_line=10)
    append(path, b"x" * 25)
    assert tail.read() == ["x" * 10, "x" * 10]
    assert tail.rest() == "x" * 5


def test_a_big_file_is_read_in_several_goes(tmp_path: Path) -> None:
    path = tmp_path / "log"
    append(path, b"0123456789abcde\n" * (600 * 1024))
    tail = LineTail(path)
    count, goes = 0, 0
    while True:
        count += len(tail.read())
        goes += 1
        if tail.at_end:
            break
    assert count == 600 * 1024
    assert goes > 1


def test_a_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        LineTail(tmp_path).read()


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_lines_do_not_depend_on_how_the_bytes_arrived(chunks: list[bytes]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log"
        tail = LineTail(path)
        lines = []
        for chunk in chunks:
            append(path, chunk)
            lines += tail.read()
        whole = b"".join(chunks).split(b"\n")
        assert [*lines, tail.rest()] == [line.decode(errors="replace") for line in whole]


def test_lines_that_are_no_event_are_counted_and_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    good = {"t": 1.0, "kind": "step", "loss": float("nan")}
    lines = [b"{", b"[1]", b"3", b"\xff\xfe", b"", b"[" * 100_000, json.dumps(good).encode()]
    append(path, b"\n".join(lines) + b'\n{"t": 2')
    tail = EventTail(path)
    (event,) = tail.read()
    assert event["kind"] == "step"
    assert tail.malformed == 5
    append(path, b', "kind": "x"}\n')
    assert tail.read() == [{"t": 2, "kind": "x"}]


def test_an_event_log_is_found_in_its_folder(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with pytest.raises(UsageError, match="no event log"):
        find_event_log(tmp_path)
    path.touch()
    assert find_event_log(tmp_path) == path
    assert find_event_log(path) == path

"""A host's log that goes on in another file while it is read: each line once, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.folders import aside_of, put_aside
from slurmmesh.hosts.rotation import RotatingFile
from slurmmesh.jobs import rotated
from slurmmesh.jobs.log_files import LogFiles, _last_lines
from slurmmesh.jobs.log_lines import Selection
from slurmmesh.jobs.rotated import RotatedTail


def last_of(path: Path, count: int) -> tuple[list[bytes], int]:
    return _last_lines(path, count, lambda line: True)


class Writer:
    """Writes numbered lines, and begins a new file when it is told to."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.count = 0
        self._open()

    def _open(self) -> None:
        self._file = RotatingFile(str(self.log), 1 << 30, 1 << 30)

    def write(self, lines: int) -> None:
        for _ in range(lines):
            self._file.write(b"%d\n" % self.count)
            self.count += 1

    def rotate(self) -> None:
        self._file._rotate()

    def close(self) -> None:
        self._file.close()


actions = st.lists(st.one_of(st.integers(1, 4), st.sampled_from(["rotate", "read"])), max_size=30)


@given(actions, st.sampled_from([2, 5, 1 << 20]))
def test_each_line_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, steps: list[int | str], at_once: int
) -> None:
    log = tmp_path_factory.mktemp("log") / "n1.log"
    tail = RotatedTail(log, 1 << 20)  # before anything is there
    tail.at_once = at_once
    writer = Writer(log)
    got: list[bytes] = []
    for step in steps:
        if isinstance(step, int):
            writer.write(step)
        elif step == "rotate":
            writer.rotate()
        else:
            got += tail.read()
    while True:
        got += tail.read()
        if tail.at_end:
            break
    writer.close()
    assert got == [b"%d" % number for number in range(writer.count)]


@pytest.mark.slow
@given(st.lists(st.integers(0, 3), max_size=6), st.integers(0, 12))
def test_the_last_lines_of_all_files_and_then_what_comes(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], last: int
) -> None:
    log = tmp_path_factory.mktemp("log") / "n1.log"
    writer = Writer(log)
    for size in sizes:
        writer.write(size)
        writer.rotate()
    writer.write(2)
    tail = RotatedTail(log, 1 << 20)
    before = writer.count
    expected = [b"%d" % number for number in range(max(0, before - last), before)]
    assert tail.skip_to_last(last, last_of) == expected
    assert tail.read() == []
    writer.write(1)
    writer.rotate()
    writer.write(1)
    got: list[bytes] = []
    while len(got) < 2:
        got += tail.read()
    assert got == [b"%d" % before, b"%d" % (before + 1)]
    writer.close()


def test_a_file_put_aside_between_a_look_at_the_folder_and_its_opening(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "n1.log"
    writer = Writer(log)
    writer.write(2)

    def aside_and_rotate(path: Path) -> list[int]:
        found = aside_of(path)
        writer.rotate()
        writer.write(1)
        monkeypatch.setattr(rotated, "aside_of", aside_of)
        return found

    monkeypatch.setattr(rotated, "aside_of", aside_and_rotate)
    tail = RotatedTail(log, 1 << 20)
    got: list[bytes] = []
    while len(got) < 3:
        got += tail.read()
    assert got == [b"0", b"1", b"2"]
    writer.close()


def test_a_file_that_is_deleted_before_it_was_read_holds_nothing_up(tmp_path: Path) -> None:
    log = tmp_path / "n1.log"
    writer = Writer(log)
    writer.write(1)
    tail = RotatedTail(log, 1 << 20)
    assert tail.read() == [b"0"]
    for _ in range(3):
        writer.write(1)
        writer.rotate()
    for number in (1, 2):
        put_aside(log, number).unlink()
    got: list[bytes] = []
    while not (tail.at_end and got):
        got += tail.read()
    assert got == [b"3"]
    writer.close()


def test_the_logs_of_hosts_are_merged_over_all_their_files(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    hosts = ("n1", "n2")
    files = {host: RotatingFile(str(folder / f"{host}.log"), 60, 100) for host in hosts}
    for number in range(20):
        host = hosts[number % 2]
        files[host].write(f"10:00:{number:02}.000 m[{number % 2}] | {number}\n".encode())
    for file in files.values():
        file.close()
    assert len(list(folder.iterdir())) == 10
    lines = list(LogFiles(tmp_path, Selection()).read())
    assert [int(line.rpartition(b"| ")[2]) for line in lines] == list(range(20))
    logs = LogFiles(tmp_path, Selection(ranks=frozenset({1}), controller=False), last=3)
    assert [int(line.rpartition(b"| ")[2]) for line in logs.read()] == [15, 17, 19]
    for host in hosts:
        (folder / f"{host}.log").unlink()  # in the moment in which the newest is renamed
    assert not LogFiles(tmp_path, Selection()).is_empty
    assert len(list(LogFiles(tmp_path, Selection()).read())) == 16

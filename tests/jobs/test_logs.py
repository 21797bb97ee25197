"""Logs: read as they grow, merged, filtered, shown."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.jobs.log_files import LogFiles, _last_lines
from slurmmesh.jobs.log_lines import Clock, Selection, for_terminal, of_host, parse_ranks

ALL = Selection()


def head(seconds: float, rank: int, mesh: str = "m") -> bytes:
    whole = int(seconds)
    clock = f"{whole // 3600 % 24:02}:{whole // 60 % 60:02}:{whole % 60:02}"
    return f"{clock}.{round(seconds % 1 * 1000) % 1000:03} {mesh}[{rank}] | ".encode()


def write(path: Path, lines: Iterable[bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "ab") as file:
        file.writelines(line + b"\n" for line in lines)


def test_the_controller_comes_first_then_the_hosts_by_time(tmp_path: Path) -> None:
    write(tmp_path / "controller.log", [b"program", b"says"])
    write(tmp_path / "controller.err", [b"error"])
    write(tmp_path / "logs" / "n1.log", [head(1, 0) + b"a", head(3, 0) + b"c"])
    write(tmp_path / "logs" / "n2.log", [head(2, 1) + b"b", b"no prefix", head(4, 1) + b"d"])
    lines = list(LogFiles(tmp_path, ALL).read())
    assert lines[:3] == [b"program", b"says", b"error"]
    assert [line[-1:] for line in lines[3:]] == [b"a", b"b", b"x", b"c", b"d"]
    assert lines[5] == b"n2 | no prefix"


def test_ranks_meshes_and_hosts(tmp_path: Path) -> None:
    write(tmp_path / "controller.log", [b"program"])
    write(tmp_path / "logs" / "n1.log", [head(1, 0) + b"a", head(2, 1, "other") + b"b", b"raw"])
    write(tmp_path / "logs" / "n2.log", [head(3, 3) + b"c", b"12:00:00.000 slurmmesh | 3 lines"])

    def ends(**wanted: object) -> list[bytes]:
        lines = LogFiles(tmp_path, Selection(**wanted)).read()  # type: ignore[arg-type]
        return [line[-1:] for line in lines]

    assert ends(controller=False, ranks=frozenset({0, 3})) == [b"a", b"c"]
    assert ends(controller=False, meshes=frozenset({"other"})) == [b"b"]
    assert ends(controller=False, names=frozenset({"n1"})) == [b"a", b"b", b"w"]
    assert ends(hosts=False) == [b"m"]
    assert ends(controller=False, ranks=frozenset({1}), meshes=frozenset({"m"})) == []


def test_what_comes_later_comes_later(tmp_path: Path) -> None:
    logs = LogFiles(tmp_path / "attempt-0", ALL)
    assert list(logs.read()) == []
    assert logs.is_empty
    first = tmp_path / "attempt-0" / "logs" / "n1.log"
    write(first, [head(1, 0) + b"a"])
    assert [line[-1:] for line in logs.read()] == [b"a"]
    write(first, [head(2, 0) + b"b"])
    write(tmp_path / "attempt-0" / "logs" / "n2.log", [head(3, 1) + b"c"])
    with open(first, "ab") as file:
        file.write(b"no end")
    assert [line[-1:] for line in logs.read()] == [b"b", b"c"]
    assert list(logs.rest()) == [b"n1 | no end"]
    assert not logs.is_empty


def test_a_log_that_was_cut_or_replaced_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "controller.log"
    write(path, [b"one", b"two"])
    logs = LogFiles(tmp_path, ALL)
    assert list(logs.read()) == [b"one", b"two"]
    path.write_bytes(b"three\n")
    assert list(logs.read()) == [b"three"]
    path.rename(tmp_path / "controller.log.1")
    write(path, [b"four is longer than before"])
    assert list(logs.read()) == [b"four is longer than before"]
    path.unlink()
    assert list(logs.read()) == []


def test_the_last_lines_of_each_file_are_those_wanted(tmp_path: Path) -> None:
    write(tmp_path / "controller.log", [b"p%d" % n for n in range(5)])
    write(tmp_path / "logs" / "n1.log", [head(n, n % 2) + b"%d" % n for n in range(9)])
    lines = list(LogFiles(tmp_path, ALL, 2).read())
    assert lines[:2] == [b"p3", b"p4"]
    assert [line[-1:] for line in lines[2:]] == [b"7", b"8"]
    odd = Selection(controller=False, ranks=frozenset({1}))
    logs = LogFiles(tmp_path, odd, 3)
    assert [line[-1:] for line in logs.read()] == [b"3", b"5", b"7"]
    write(tmp_path / "logs" / "n1.log", [head(9, 1) + b"9"])
    write(tmp_path / "logs" / "n2.log", [head(8, 1) + b"x", head(8, 0) + b"y"])
    assert [line[-1:] for line in logs.read()] == [b"x", b"9"]
    assert list(LogFiles(tmp_path, ALL, 0).read()) == []


lines_of_files = st.lists(st.binary(max_size=200).map(lambda b: b.replace(b"\n", b"")), max_size=40)


@given(lines_of_files, st.binary(max_size=20), st.integers(0, 45))
def test_last_lines_are_the_end_of_all_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], rest: bytes, count: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "log"
    rest = rest.replace(b"\n", b"")
    whole = b"".join(line + b"\n" for line in lines)
    path.write_bytes(whole + rest)
    found, end = _last_lines(path, count, lambda line: True)
    assert found == lines[max(0, len(lines) - count) :]
    assert end == len(whole)


def test_last_lines_of_a_file_of_many_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [b"%d " % n + b"x" * (n % 777) for n in range(2000)]
    write(path, lines)
    found, end = _last_lines(path, 1500, lambda line: True)
    assert found == lines[500:]
    assert end == path.stat().st_size
    path.write_bytes(b"y" * 300_000)
    assert _last_lines(path, 5, lambda line: True) == ([], 0)


def test_midnight_is_no_way_back() -> None:
    clock = Clock()
    evening, night = head(23 * 3600 + 3599, 0), head(1, 0)
    assert clock.time_of(evening) < clock.time_of(night)
    assert clock.time_of(b"no time") == clock.time_of(head(1, 0))
    early = head(0.5, 0)
    assert clock.time_of(early) >= 86400  # a little disorder is no new day


@pytest.mark.slow
@given(st.lists(st.lists(st.integers(0, 80_000)).map(sorted), max_size=5))
def test_each_line_comes_once_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, times: list[list[int]]
) -> None:
    folder = tmp_path_factory.mktemp("attempt")
    for number, own in enumerate(times):
        write(folder / "logs" / f"n{number}.log", [head(t, number) + b"%d" % t for t in own])
    lines = [int(line.rpartition(b"| ")[2]) for line in LogFiles(folder, ALL).read()]
    assert lines == sorted(t for own in times for t in own)


@given(st.binary())
def test_no_line_messes_a_terminal(line: bytes) -> None:
    shown = for_terminal(line)
    for part in shown.split("\x1b[")[1:]:
        assert part.lstrip("0123456789;:").startswith("m")
    assert "\r" not in shown
    assert "\n" not in shown
    Selection(ranks=frozenset({1})).wants(line)
    assert of_host(line, "n1").endswith(line)


def test_colours_stay_and_end_with_their_line() -> None:
    assert for_terminal(b"\x1b[31mred") == "\x1b[31mred\x1b[0m"
    assert for_terminal(b"\x1b[2Jgone\x07") == "�[2Jgone�"
    assert for_terminal(b"10%\r20%\r100%\r") == "100%"
    assert for_terminal(b"a\tb \xff") == "a       b �"


def test_ranks_are_lists() -> None:
    assert parse_ranks("3,5-7") == {3, 5, 6, 7}
    for wrong in ("", "x", "3-", "7-5", "-1"):
        with pytest.raises(UsageError, match="--rank"):
            parse_ranks(wrong)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "controller.log").mkdir()
    with pytest.raises(UsageError, match=r"controller\.log cannot be read: Is a directory"):
        list(LogFiles(tmp_path, ALL).read())


READS_ALL = """
import resource, sys
from pathlib import Path
from slurmmesh.jobs.log_files import LogFiles
from slurmmesh.jobs.log_lines import Selection
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
print(sum(1 for line in LogFiles(Path(sys.argv[1]), Selection()).read()))
"""


@pytest.mark.slow
def test_large_logs_do_not_eat_memory(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    block = b"".join(head(n / 1000, n % 8) + b"x" * 100 + b"\n" for n in range(30_000))
    for number in range(20):
        (tmp_path / "logs" / f"n{number}.log").write_bytes(block)
    (tmp_path / "controller.log").write_bytes(b"y" * (64 << 20))  # a line that never ends
    done = subprocess.run(
        [sys.executable, "-c", READS_ALL, str(tmp_path), str(150 << 20)],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 20 * 30_000 + 63

"""A bounded log: files of whole lines, none lost between them."""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.folders import aside_of, files_of
from slurmmesh.hosts import rotation
from slurmmesh.hosts.output import LogFile
from slurmmesh.hosts.rotation import RotatingFile


def write_all(file: RotatingFile, data: bytes) -> None:
    while data:
        data = data[file.write(data) :]


lines = st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"") + b"\n"), min_size=1)


@pytest.mark.slow
@given(st.lists(lines, max_size=8), st.integers(1, 60))
def test_every_line_is_in_one_file_whole_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, writes: list[list[bytes]], most: int
) -> None:
    log = tmp_path_factory.mktemp("log") / "node1.log"
    for begin in (0, 1):  # a second agent goes on where the first stopped
        file = RotatingFile(str(log), most, keep=10_000)
        for each in writes[begin::2]:
            write_all(file, b"".join(each))
        file.close()
    texts = [path.read_bytes() for path in files_of(log)]
    assert b"".join(texts) == b"".join(b"".join(each) for each in writes[::2] + writes[1::2])
    for text in texts:
        assert not text or text.endswith(b"\n")
        assert len(text) <= most or text.count(b"\n") == 1
    assert all(texts[:-1])


def test_only_so_many_are_kept_and_each_has_its_number_for_good(tmp_path: Path) -> None:
    log = tmp_path / "node1.log"
    file = RotatingFile(str(log), 4, keep=2)
    for number in range(6):
        write_all(file, b"%d..\n" % number)
    assert aside_of(log) == [4, 5]
    assert [path.read_bytes() for path in files_of(log)] == [b"3..\n", b"4..\n", b"5..\n"]
    file.close()
    file = RotatingFile(str(log), 4, keep=0)
    write_all(file, b"6..\n")
    file.close()
    assert files_of(log) == [log]
    assert log.read_bytes() == b"6..\n"


def test_where_no_file_can_be_begun_the_old_one_goes_on(tmp_path, monkeypatch) -> None:
    log = tmp_path / "node1.log"
    file = RotatingFile(str(log), 8, keep=5)
    with monkeypatch.context() as patch:
        patch.setattr(rotation.os, "open", lambda *_: (_ for _ in ()).throw(OSError(24, "no fd")))
        for number in range(5):
            write_all(file, b"%d..\n" % number)
    assert files_of(log) == [log]
    for number in range(5, 9):
        write_all(file, b"%d..\n" % number)
    file.close()
    texts = [path.read_bytes() for path in files_of(log)]
    assert len(texts) > 1
    assert b"".join(texts) == b"".join(b"%d..\n" % number for number in range(9))


def test_a_log_that_somebody_took_away_is_begun_anew(tmp_path: Path) -> None:
    log = tmp_path / "node1.log"
    file = RotatingFile(str(log), 4, keep=5)
    write_all(file, b"0..\n")
    log.unlink()
    write_all(file, b"1..\n")
    file.close()
    assert log.read_bytes() == b"1..\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_flood_waits_for_a_slow_disk_but_not_for_one_that_stands_still(
    tmp_path: Path, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    log = LogFile(str(path), 1 << 40, 0)
    assert not log.is_busy(0.0)
    log.write([b"x" * 100_000], "m[0] ")  # more than a pipe takes
    wait_until(lambda: select.select([reader], [], [], 0)[0])  # it is being written
    for _ in range(40):
        log.write([b"x" * 100_000], "m[0] ")
    assert log.is_busy(10.0)
    assert log.is_busy(10.9)
    assert not log.is_busy(11.1)
    os.set_blocking(reader, True)
    got = b""
    while got.count(b"\n") < 41:
        got += os.read(reader, 1 << 20)
    assert not log.is_busy(11.2)
    log.close()
    os.close(reader)

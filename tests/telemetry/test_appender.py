"""Appending without waiting: whole lines in order, whatever the file system does."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmmesh.telemetry import EventLog, appender, read_events
from slurmmesh.telemetry.appender import Appender, OpenFile


def note(count: int) -> bytes:
    return f"{count} missing\n".encode()


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[tuple[Path, int]]:
    """A pipe in the place of a file, full, and the end that takes from it."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDWR | os.O_NONBLOCK)
    try:
        while True:
            os.write(reader, b"x" * 4096)
    except BlockingIOError:
        yield path, reader
    os.close(reader)


def take(reader: int, until: bytes) -> bytes:
    """Read until these bytes have come."""
    got = b""
    os.set_blocking(reader, True)
    while until not in got:
        got += os.read(reader, 1 << 16)
    return got.lstrip(b"x")


def test_a_stall_holds_nobody_up_and_loses_only_what_does_not_fit(stalled, monkeypatch):
    monkeypatch.setattr(appender, "LIMIT_BYTES", 100)
    path, reader = stalled
    log = Appender(OpenFile(os.open(path, os.O_WRONLY)), note)
    log.write(b"first\n")
    assert not log.flush(0.05)
    for number in range(30):
        log.write(b"%09d\n" % number)
    log.close(0.05)  # gives up waiting
    got = take(reader, b"missing\n")
    kept = b"".join(b"%09d\n" % number for number in range(10))
    assert got == b"first\n" + kept + b"20 missing\n"
    log._thread.join(20)


def test_a_disk_that_is_full_for_a_while_leaves_whole_lines(tmp_path, monkeypatch):
    room = [4, 0, 0]

    def write(fd: int, data: bytes) -> int:
        if not room:
            return real(fd, data)
        taken = room.pop(0)
        if not taken:
            raise OSError(28, "No space left on device")
        return real(fd, data[:taken])

    real = os.write
    path = tmp_path / "log"
    log = Appender(OpenFile(os.open(path, os.O_WRONLY | os.O_CREAT)), note)
    monkeypatch.setattr(appender.os, "write", write)
    log.write(b"one\ntwo\nthree\n")
    assert log.flush(20)
    log.write(b"four\n")
    log.close(20)
    assert path.read_bytes() == b"one\n2 missing\nfour\n"


def test_events_are_there_once_written_and_a_forked_child_may_write(tmp_path):
    log = EventLog(tmp_path / "events.jsonl")
    log.write({"kind": "one"})
    assert [event["kind"] for event in read_events(log.path)] == ["one"]
    child = os.fork()
    if child == 0:
        log.write({"kind": "two"})
        log.close()
        os._exit(0)
    os.waitpid(child, 0)
    log.write({"kind": "three"})
    log.close()
    log.write({"kind": "four"})
    kinds = [json.loads(line)["kind"] for line in log.path.read_text().splitlines()]
    assert kinds == ["one", "two", "three"]

"""The output of all ranks of a host, in one file, each line with its rank."""

from __future__ import annotations

import collections
import os
import time
from collections.abc import Sequence
from typing import Protocol

from slurmmesh.actors.marks import MARK, read_mark
from slurmmesh.hosts.rotation import RotatingFile
from slurmmesh.telemetry import Appender, OpenFile
from slurmmesh.wire.reactor import READ, Reactor

TAIL_LINES = 20
_CHUNK = 1 << 16
_READS_AT_END = 256
_MAX_LINE = 1 << 16
_MAX_TAIL_LINE = 1000
_CLOSE_S = 1.0
_BUSY_BYTES = 2 << 20
_FLOOD_BYTES = 1 << 12
_PATIENCE_S = 1.0
_PAUSE_S = 0.02

Levels = Sequence[int | None]


class LogFile:
    """Appends whole lines to a file, or to our own stderr; never waits for the file system.

    What a full or stalled one does not take is lost, and a line says so.

    Args:
        path: None for our own stderr.
        max_bytes, keep: see ``RotatingFile``.
    """

    def __init__(self, path: str | None, max_bytes: int, keep: int) -> None:
        self.is_file = path is not None
        file = OpenFile(os.dup(2)) if path is None else RotatingFile(path, max_bytes, keep)
        self._file = Appender(file, _missing)
        self._busy_since: float | None = None

    def write(self, lines: Sequence[bytes], prefix: str) -> None:
        """Write ``lines`` (without their ends), each behind time and prefix."""
        head = f"{stamp(time.time())} {prefix}| ".encode()
        self._file.write(b"".join(head + line + b"\n" for line in lines))

    def is_busy(self, now: float) -> bool:
        """Whether it has much to write, and writes: who floods it is to wait.

        Not if it stands still: nobody waits for a file system that stalls.
        """
        if self._file.waiting < _BUSY_BYTES:
            self._busy_since = None
            return False
        if self._busy_since is None:
            self._busy_since = now
        return now - self._busy_since < _PATIENCE_S

    def close(self) -> None:
        """Write what is left, in bounded time, and close the file."""
        self._file.close(_CLOSE_S)


def stamp(at: float) -> str:
    """The time of day, to the millisecond."""
    return time.strftime("%H:%M:%S", time.localtime(at)) + f".{int(at % 1 * 1000):03d}"


def _missing(count: int) -> bytes:
    now = stamp(time.time())
    return f"{now} slurmmesh | {count} lines are missing here: not written in time\n".encode()


class LineSink(Protocol):
    """Where a stream's lines go."""

    def write(self, lines: Sequence[bytes], levels: Levels) -> None:
        """Take lines; ``levels`` has one for each, or is empty if none has any."""

    def is_busy(self, now: float) -> bool:
        """See ``LogFile.is_busy``."""


class Stream:
    """One pipe of one proc: read in the agent's loop, cut into lines, given to its sink.

    A proc that floods is read in turns with all else, and no faster than what it writes can be
    put into the log, so it does not hold up the others.
    """

    def __init__(self, reactor: Reactor, sink: LineSink) -> None:
        self._reactor = reactor
        self._sink = sink
        self._rest = b""
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        reactor.watch(self._fd, READ, self._readable)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines."""
        return tuple(self._tail)

    def close_write_end(self) -> None:
        """Close our copy of the end that the proc has."""
        if self.write_fd >= 0:
            os.close(self.write_fd)
            self.write_fd = -1

    def finish(self) -> None:
        """Take what is still in the pipe, and close it."""
        self.close_write_end()
        for _ in range(_READS_AT_END):  # bounded: an escaped grandchild may write for ever
            if self._fd < 0 or not self._read():
                break
        self._close()

    def _readable(self, _events: int) -> None:
        if self._read() >= _FLOOD_BYTES and self._sink.is_busy(self._reactor.clock()):
            self._reactor.unwatch(self._fd)
            self._reactor.call_later(_PAUSE_S, self._resume)

    def _resume(self) -> None:
        if self._fd >= 0:
            self._reactor.watch(self._fd, READ, self._readable)

    def _read(self) -> int:
        """Read once; returns how many bytes, 0 when nothing more is there now."""
        try:
            data = os.read(self._fd, _CHUNK)
        except BlockingIOError:
            return 0
        if data:
            self._take(data)
        else:
            self._close()
        return len(data)

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        if not lines:
            return
        levels: Levels = ()
        if any(MARK in line for line in lines):
            marked = [read_mark(line) for line in lines]
            levels, lines = [level for level, _ in marked], [line for _, line in marked]
        last = (line[:_MAX_TAIL_LINE] for line in lines[-TAIL_LINES:])
        self._tail.extend(line.decode(errors="backslashreplace") for line in last)
        self._sink.write(lines, levels)

    def _close(self) -> None:
        if self._fd < 0:
            return
        if self._rest:
            self._take(b"\n")
        self._reactor.unwatch(self._fd)
        os.close(self._fd)
        self._fd = -1

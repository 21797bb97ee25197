"""The output of all ranks of a host, in one file, each line with its rank."""

from __future__ import annotations

import collections
import os
import time

from slurmmesh.telemetry import Appender
from slurmmesh.wire.reactor import READ, Reactor

TAIL_LINES = 20
_CHUNK = 1 << 16
_READS_A_TURN = 16
_READS_AT_END = 256
_MAX_LINE = 1 << 16
_MAX_TAIL_LINE = 1000
_CLOSE_S = 1.0


class LogFile:
    """Appends whole lines to a file, or to our own stderr; never waits for the file system.

    What a full or stalled one does not take is lost, and a line says so.
    """

    def __init__(self, path: str | None) -> None:
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self.fd = os.dup(2) if path is None else os.open(path, flags, 0o600)
        self._file = Appender(self.fd, _missing)

    def write(self, lines: list[bytes], prefix: str) -> None:
        """Write ``lines`` (without their ends), each behind time and prefix."""
        head = f"{_stamp()} {prefix}| ".encode()
        self._file.write(b"".join(head + line + b"\n" for line in lines))

    def close(self) -> None:
        """Write what is left, in bounded time, and close the file."""
        self._file.close(_CLOSE_S)


def _stamp() -> str:
    now = time.time()
    return time.strftime("%H:%M:%S", time.localtime(now)) + f".{int(now % 1 * 1000):03d}"


def _missing(count: int) -> bytes:
    return f"{_stamp()} slurmmesh | {count} lines are missing here: not written in time\n".encode()


class Stream:
    """One pipe of one proc: read in the agent's loop, cut into lines, written to the log.

    A proc that floods is read in turns, so it does not hold up the others.
    """

    def __init__(self, reactor: Reactor, log: LogFile, prefix: str) -> None:
        self._reactor = reactor
        self._log = log
        self._prefix = prefix
        self._rest = b""
        self._tail: collections.deque[str] = collections.deque(maxlen=TAIL_LINES)
        self._fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self._fd, False)
        reactor.watch(self._fd, READ, lambda _events: self._read(_READS_A_TURN))

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
        if self._fd >= 0:
            self._read(_READS_AT_END)  # bounded: an escaped grandchild may write for ever
        self._close()

    def _read(self, turns: int) -> bool:
        """Read up to ``turns`` chunks. False when nothing more is there now."""
        for _ in range(turns):
            try:
                data = os.read(self._fd, _CHUNK)
            except BlockingIOError:
                return False
            if not data:
                self._close()
                return False
            self._take(data)
        return True

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            last = (line[:_MAX_TAIL_LINE] for line in lines[-TAIL_LINES:])
            self._tail.extend(line.decode(errors="backslashreplace") for line in last)
            self._log.write(lines, self._prefix)

    def _close(self) -> None:
        if self._fd < 0:
            return
        if self._rest:
            self._take(b"\n")
        self._reactor.unwatch(self._fd)
        os.close(self._fd)
        self._fd = -1

"""Appending to a file of the job folder without ever waiting for its file system.

The job folder is on a file system that all nodes see, and those stall for minutes. Who writes
from a loop that also gives signs of life must not stall with it.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Protocol

LIMIT_BYTES = 16 << 20
"""So much may wait to be written; what comes while it does is dropped and counted."""


class File(Protocol):
    """What an appender writes to. Its thread may wait there; no other does."""

    def write(self, data: bytes) -> int:
        """Write some of ``data``, and return how much. Raises OSError."""

    def close(self) -> None:
        """Close it."""


class OpenFile:
    """A descriptor that was opened for append."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: bytes) -> int:
        """See ``File.write``."""
        return os.write(self._fd, data)

    def close(self) -> None:
        """See ``File.close``."""
        os.close(self._fd)


class Appender:
    """Writes whole lines to a file, in order, from a thread of its own.

    What is written is handed to the kernel at once, so the end of the process loses next to
    nothing. Lines that the file system does not take (stalled for long, full) are dropped; once
    it does again, a line says how many are missing there. Safe to use from any thread and from
    signal handlers. A forked child, which does not have the thread, writes by itself.

    Args:
        file: closed by this object.
        note: makes the line, with its end, that says how many lines are missing.
    """

    def __init__(self, file: File, note: Callable[[int], bytes]) -> None:
        self._file = file
        self._note = note
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._queue: queue.SimpleQueue[bytes | threading.Event | None] = queue.SimpleQueue()
        self._waiting = 0  # bytes in the queue
        self._dropped = 0  # lines that came when the queue was full
        self._stalled = False
        self._closed = False
        self._missing = 0  # lines not in the file, not told there yet; of the thread
        self._torn = False  # the file ends in the middle of a line; of the thread
        self._thread = threading.Thread(target=self._run, name="slurmmesh-log", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Bytes that the thread has not begun to write."""
        return self._waiting

    def write(self, lines: bytes) -> None:
        """Append lines, each with its end. Returns at once."""
        if os.getpid() != self._pid:
            with contextlib.suppress(OSError):
                self._file.write(lines)
            return
        with self._lock:
            if self._closed:
                return
            if self._dropped or (self._waiting and self._waiting + len(lines) > LIMIT_BYTES):
                self._dropped += lines.count(b"\n")
                return
            self._waiting += len(lines)
            self._queue.put(lines)

    def flush(self, timeout: float) -> bool:
        """Wait until all that was written is in the file. Not in a loop's thread.

        False if ``timeout`` seconds were not enough, and without waiting while the stall goes on.
        """
        if os.getpid() != self._pid or self._closed:
            return True
        if self._stalled:
            return False
        done = threading.Event()
        self._queue.put(done)
        self._stalled = not done.wait(timeout)
        return not self._stalled

    def close(self, timeout: float) -> None:
        """Write what waits, for at most ``timeout`` seconds; later lines are dropped."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join(timeout)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        ending = False
        while not ending:
            items = [self._queue.get()]
            with self._lock:
                while not self._queue.empty():
                    items.append(self._queue.get())
                dropped, self._dropped, self._waiting = self._dropped, 0, 0
            self._append(b"".join(item for item in items if isinstance(item, bytes)), dropped)
            self._stalled = False
            for item in items:
                if isinstance(item, threading.Event):
                    item.set()
            ending = None in items
        self._file.close()

    def _append(self, lines: bytes, dropped: int) -> None:
        """Write lines, and around them how many are missing: ``dropped`` came after them."""
        self._tell_missing()
        rest = lines if self._missing else self._put(lines)
        self._missing += rest.count(b"\n") + dropped
        self._tell_missing()

    def _tell_missing(self) -> None:
        if self._missing and not self._put(self._note(self._missing)):
            self._missing = 0

    def _put(self, data: bytes) -> bytes:
        """Write as much as the file takes; returns the rest. Begins with a line of its own."""
        rest = b"\n" + data if self._torn and data else data
        with contextlib.suppress(OSError):
            while rest:
                written = self._file.write(rest)
                self._torn = rest[written - 1 : written] != b"\n"
                rest = rest[written:]
        return rest

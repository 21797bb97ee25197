"""The event log: one JSON object a line, the source of truth for views, reports and benchmarks.

Each event has ``t`` (seconds since the epoch, taken where it happened), ``kind`` and who it
concerns. Kinds and their fields are listed in ``docs/events.md``.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Event = dict[str, Any]


class EventLog:
    """Appends events to a file. Safe to use from several threads.

    Each event is one ``write`` to a descriptor opened for append, so a reader never sees
    half a line followed by another event, and nothing is lost when the process is killed.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._lock = threading.RLock()  # a signal handler may emit while its thread does

    def write(self, event: Event) -> None:
        """Append one event; a full disk or a closed log loses the event, not the job."""
        line = json.dumps(event, default=str, separators=(",", ":")) + "\n"
        with self._lock, contextlib.suppress(OSError):
            if self._fd >= 0:
                os.write(self._fd, line.encode())

    def close(self) -> None:
        """Close the file; later events are dropped."""
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


_sink: Callable[[Event], None] | None = None


def set_sink(
    sink: Callable[[Event], None] | None, *, instead_of: Callable[[Event], None] | None = None
) -> Callable[[Event], None] | None:
    """Say where this process's events go: the controller's log, or the link towards it.

    With ``instead_of`` only if they go there now. Returns where they went before.
    """
    global _sink
    before = _sink
    if instead_of is None or instead_of == before:
        _sink = sink
    return before


def make_event(kind: str, **fields: Any) -> Event:
    """An event; ``t`` is now unless given."""
    return {"t": fields.pop("t", None) or time.time(), "kind": kind, **fields}


def emit(kind: str, **fields: Any) -> Event:
    """Make an event, hand it to this process's sink if there is one, and return it.

    ``t`` is set to now unless given.
    """
    event = make_event(kind, **fields)
    if _sink is not None:
        _sink(event)
    return event


def read_events(path: Path | str) -> Iterator[Event]:
    """Yield the events of a log. A last line without its end (still being written) is left out."""
    with open(path, "rb") as file:
        for line in file:
            if line.endswith(b"\n") and line.strip():
                yield json.loads(line)

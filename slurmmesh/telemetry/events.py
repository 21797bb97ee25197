"""The event log: one JSON object a line, the source of truth for views, reports and benchmarks.

Each event has ``t`` (seconds since the epoch, taken where it happened), ``kind`` and who it
concerns. Kinds and their fields are listed in ``docs/events.md``.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from slurmmesh.telemetry.appender import Appender, OpenFile

Event = dict[str, Any]


_FLUSH_S = 0.2
_CLOSE_S = 2.0


class EventLog:
    """Appends events to a file. Safe to use from several threads, and from signal handlers.

    A reader sees whole lines in the order of the calls. A file system that stalls or is full
    holds nobody up: it loses events, and an event ``events_lost`` says how many.

    Args:
        may_wait: whether the calling thread may wait a moment, so that what it wrote is there
            for whom it tells next. One that drives links may not.
    """

    def __init__(self, path: Path | str, may_wait: Callable[[], bool] = lambda: True) -> None:
        self.path = Path(path)
        self._may_wait = may_wait
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._file = Appender(
            OpenFile(fd), lambda count: _line(make_event("events_lost", count=count))
        )

    def write(self, event: Event) -> None:
        """Append one event; a full disk or a closed log loses the event, not the job."""
        self._file.write(_line(event))
        if self._may_wait():
            self._file.flush(_FLUSH_S)

    def close(self) -> None:
        """Close the file; later events are dropped."""
        self._file.close(_CLOSE_S)


def _line(event: Event) -> bytes:
    return json.dumps(event, default=str, separators=(",", ":")).encode() + b"\n"


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

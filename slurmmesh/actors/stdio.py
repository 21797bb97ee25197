"""Levels of ``logging`` on the way through a proc's stdout and stderr.

What a handler of ``logging`` writes to ``sys.stdout`` or ``sys.stderr`` gets a mark with the level
of its record in front of each line; the host takes the marks off again. Handlers, formats and
loggers are the user's: nothing is added to them and none is in their way. Lines are marked only
while the descriptor is the pipe to the host, so what a program turns into a file of its own is
as it wrote it.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from typing import Any

from slurmmesh.actors.marks import with_marks


class _Current(threading.local):
    level: int | None = None


_current = _Current()


class RankStream(io.TextIOWrapper):
    """``sys.stdout`` or ``sys.stderr`` of a proc. Each line goes out when it is whole."""

    def __init__(self, fd: int) -> None:
        raw = open(fd, "wb", closefd=False)  # noqa: SIM115  (it lives as long as the process)
        super().__init__(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
        self._fd = fd
        self._pipe: tuple[int, int] | None = None
        self._at_start = True

    def mark_levels(self) -> None:
        """From now on mark lines: the descriptor is the pipe to the host."""
        self._pipe = _identity(self._fd)
        self._at_start = True

    def write(self, text: str) -> int:
        """Write as any stream does; marks are not counted."""
        level = _current.level
        if level is not None and self._at_start and self._pipe == _identity(self._fd):
            super().write(with_marks(text, level))
        else:
            super().write(text)
        if text:
            self._at_start = text[-1] == "\n"
        return len(text)


def _identity(fd: int) -> tuple[int, int] | None:
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_dev, status.st_ino


_streams: list[RankStream] = []


def use_rank_streams() -> None:
    """Replace ``sys.stdout`` and ``sys.stderr`` of this process, and have levels noted."""
    sys.stdout, sys.stderr = _streams[:] = (RankStream(1), RankStream(2))
    handle = logging.Handler.handle

    def handle_noted(self: logging.Handler, record: logging.LogRecord) -> Any:
        before = _current.level
        _current.level = record.levelno
        try:
            return handle(self, record)
        finally:
            _current.level = before

    logging.Handler.handle = handle_noted  # type: ignore[method-assign]


def mark_levels() -> None:
    """The descriptors are pipes to a host now: mark what goes there."""
    for stream in _streams:
        stream.mark_levels()


_given = logging.WARNING
"""The root logger's level, as Python or we have set it."""


def write_from(level: int) -> None:
    """Have records of this level written, unless the program has chosen a level itself.

    What Python writes by itself, warnings and errors, is written whatever the level.
    """
    global _given
    root = logging.getLogger()
    if root.level != _given:
        return
    _given = min(max(level, 1), logging.WARNING)
    root.setLevel(_given)
    if logging.lastResort is not None:  # it writes what no handler is there for
        logging.lastResort.setLevel(_given)

"""The level of a record of ``logging``, as a mark before each of its lines on a pipe. Pure."""

from __future__ import annotations

import re

MARK = b"\x1e"
"""Begins each mark."""
MAX_LEVEL = 9999

_MARKS = re.compile(rb"\x1e(\d{1,4})\x1f")


def with_marks(text: str, level: int) -> str:
    """Each line of ``text``, which begins one, behind a mark."""
    mark = f"\x1e{min(max(level, 0), MAX_LEVEL)}\x1f"
    *whole, rest = text.split("\n")
    return "".join([*(f"{mark}{line}\n" for line in whole), mark + rest if rest else ""])


def read_mark(line: bytes) -> tuple[int | None, bytes]:
    """The level of a line, None if it has none, and the line without marks."""
    if MARK not in line:
        return None, line
    match = _MARKS.match(line)
    return (int(match[1]) if match else None), _MARKS.sub(b"", line)

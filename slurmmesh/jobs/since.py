"""Moments as users write them for ``--since``."""

from __future__ import annotations

import contextlib
import datetime
import re

from slurmmesh.errors import UsageError

_AGO = re.compile(
    r"(?:now)?-?(\d{1,6})\s*(s|seconds?|m|minutes?|h|hours?|d|days?|w|weeks?)", re.ASCII
)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}
_CLOCK = re.compile(r"(\d{1,2}):(\d{2}(?::\d{2})?)", re.ASCII)
# Python's own reading of moments takes more with each version.
_MOMENT = re.compile(r"\d{4}-\d{2}-\d{2}(?:[t ]\d{2}:\d{2}(?::\d{2})?)?", re.ASCII)


def parse_since(text: str, now: float) -> float:
    """Seconds since the epoch of ``2026-11-30``, ``2026-11-30T10:00``, ``10:30``, ``now-2days``.

    ``2h`` and ``3days`` are so long ago; ``today`` and a time of day are today's.

    Raises:
        UsageError: anything else.
    """
    word = text.strip().lower()
    today = datetime.datetime.fromtimestamp(now).replace(hour=0, minute=0, second=0, microsecond=0)
    if word in ("today", "midnight"):
        return today.timestamp()
    if word == "yesterday":
        return (today - datetime.timedelta(days=1)).timestamp()
    if match := _AGO.fullmatch(word):
        return now - int(match[1]) * _SECONDS[match[2][0]]
    if match := _CLOCK.fullmatch(word):
        word = f"{today:%Y-%m-%d}t{match[1]:0>2}:{match[2]}"
    with contextlib.suppress(ValueError, OverflowError):
        if _MOMENT.fullmatch(word):
            return datetime.datetime.fromisoformat(word.upper()).timestamp()
    raise UsageError(
        f"--since {text!r}: give a day (2026-11-30), a moment (2026-11-30T10:00), a time of "
        "today (10:30), or how long ago (2h, 3days, now-1week)"
    )

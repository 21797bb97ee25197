"""Reads fields of events that are not to be trusted: each answer is clean, or unknown.

A number may be NaN (a loss that diverged is news); a time, a duration and a count never are.
"""

from __future__ import annotations

import math
import signal as _signal
from typing import Any

# Seconds. Larger ones are no time of day and no duration, and would overflow sums.
_LARGEST_TIME = 1e12


def number(value: Any) -> float | None:
    """Return the value as a float, which may be NaN or infinite; None if it is no number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def time(value: Any) -> float | None:
    """Return seconds since the epoch; None if it cannot be that."""
    seconds = number(value)
    return seconds if seconds is not None and 0 <= seconds <= _LARGEST_TIME else None


def duration(value: Any) -> float | None:
    """Return seconds, zero at least (clocks of two hosts may disagree); None if it is none."""
    seconds = number(value)
    if seconds is None or not abs(seconds) <= _LARGEST_TIME:
        return None
    return max(0.0, seconds)


def integer(value: Any) -> int | None:
    """Return the value as an int of 64 bits; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    if isinstance(value, float) and not value.is_integer():
        return None
    whole = int(value)
    return whole if abs(whole) < 2**63 else None


def count(value: Any) -> int | None:
    """Return a number of things, given as such or as the list of them; None if it is none."""
    if isinstance(value, (list, tuple, dict)):
        return len(value)
    whole = integer(value)
    return whole if whole is not None and whole >= 0 else None


def text(value: Any) -> str:
    """Return text that can be encoded; a list becomes one line an item, what is no text ``""``."""
    if isinstance(value, (list, tuple)):
        return "\n".join(_word(item) for item in value)
    return _word(value)


def signal_name(value: Any) -> str:
    """Return ``SIGKILL`` and the like for a signal given by name or number, "" for none."""
    whole = integer(value)
    if whole is None:
        return _word(value)
    try:
        return _signal.Signals(whole).name
    except ValueError:
        return f"signal {whole}"


def finite(value: float | None) -> float | None:
    """Return the number, or None in place of NaN and infinity."""
    return value if value is not None and math.isfinite(value) else None


def _word(value: Any) -> str:
    if isinstance(value, str):
        # JSON can hold half of a surrogate pair, which no file and no terminal takes.
        return value.encode("utf-8", "replace").decode("utf-8")
    return str(value) if isinstance(value, (int, float)) else ""

"""Slurm's way to write a span of time, and a moment."""

from __future__ import annotations

import datetime
import math
import re

from slurmmesh.errors import UsageError

_UNLIMITED = {"UNLIMITED", "INFINITE", "-1"}
# What Slurm prints where there is no time to tell.
_NOT_KNOWN = {"", "NOT_SET", "PARTITION_LIMIT", "INVALID", "N/A", "NONE", "UNKNOWN", "(NULL)"}
_WITH_DAYS = re.compile(r"(\d{1,9})-(\d{1,9})(?::(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)
_WITHOUT_DAYS = re.compile(r"(?:(?:(\d{1,9}):)?(\d{1,9}):)?(\d{1,9})", re.ASCII)


def parse_time(text: str) -> float | None:
    """Seconds of a time limit or run time as Slurm writes it.

    ``30`` is 30 minutes, ``4:00`` is 4 minutes, ``1:30:00`` is 90 minutes, ``2-12`` is two days
    and twelve hours. ``UNLIMITED`` is infinite. None where Slurm says that it has no value
    (``NOT_SET``, ``Partition_Limit`` and the like).

    Raises:
        UsageError: anything else.
    """
    word = text.strip().upper()
    if word in _UNLIMITED:
        return math.inf
    if word in _NOT_KNOWN:
        return None
    if match := _WITH_DAYS.fullmatch(word):
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return ((days * 24.0 + hours) * 60 + minutes) * 60 + seconds
    if match := _WITHOUT_DAYS.fullmatch(word):
        first, second, last = match.groups()
        if second is None:
            return int(last) * 60.0
        return (int(first or 0) * 60.0 + int(second)) * 60 + int(last)
    raise UsageError(
        f"{text!r} is no time that Slurm understands: write minutes, minutes:seconds, "
        "hours:minutes:seconds, days-hours, days-hours:minutes or days-hours:minutes:seconds"
    )


def check_time_limit(text: str) -> str:
    """A time limit for sbatch, unchanged if it is one; 0 and UNLIMITED ask for no limit.

    Raises:
        UsageError: it is none.
    """
    if parse_time(text) is None:
        raise UsageError(f"{text!r} is no time limit: leave the option out for the site's default")
    return text.strip()


def format_time(seconds: float | None) -> str:
    """A span of time as scontrol shows it: ``2-12:00:00``, ``01:30:00``, ``UNLIMITED``.

    Parts of a second are left out; None, a time that is not known, is an empty text.
    """
    if seconds is None:
        return ""
    if math.isinf(seconds):
        return "UNLIMITED"
    minutes, second = divmod(int(seconds), 60)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    clock = f"{hour:02}:{minute:02}:{second:02}"
    return f"{days}-{clock}" if days else clock


def parse_moment(text: str) -> float | None:
    """Seconds since 1970 of a moment as Slurm's tables have it; None where there is none.

    That is such a number itself (``SLURM_TIME_FORMAT=%s``), or Slurm's own way,
    ``2026-11-30T06:47:32``, in the local time of this machine.
    """
    word = text.strip()
    if word.isascii() and word.isdigit():
        return float(word) or None
    try:
        return datetime.datetime.strptime(word, "%Y-%m-%dT%H:%M:%S").timestamp()
    except (ValueError, OverflowError):
        return None

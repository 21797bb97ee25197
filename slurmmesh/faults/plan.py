"""What faults to inject, as a user writes it: ``kill@3s``."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from difflib import get_close_matches

from slurmmesh.errors import UsageError

SIGNALS = {
    "kill": signal.SIGKILL,
    "segfault": signal.SIGSEGV,
    "abort": signal.SIGABRT,
    "term": signal.SIGTERM,
}
# What people call a fault by another name: its signal, or what it looks like to them.
_OTHER_NAMES = {
    "exit": "term",
    "terminate": "term",
    "stop": "term",
    **{signum.name.lower(): kind for kind, signum in SIGNALS.items()},
    "segv": "segfault",
    "abrt": "abort",
}
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}
_SHORTEST_S = 0.01
_LONGEST_S = 30 * 86400.0
_INTERVAL = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)([a-z]*)")


@dataclass(frozen=True)
class FaultPlan:
    """One kind of fault, again and again.

    Attributes:
        kind: ``kill``, ``segfault``, ``abort`` or ``term``: by SIGKILL, SIGSEGV, SIGABRT, SIGTERM.
        every_s: seconds between two of them, and before the first.

    Raises:
        UsageError: an unknown kind, or an interval that is not 0.01 s to 30 days.
    """

    kind: str
    every_s: float

    def __post_init__(self) -> None:
        if self.kind not in SIGNALS:
            near = get_close_matches(self.kind, [*SIGNALS, *_OTHER_NAMES], n=1)
            kind = _OTHER_NAMES.get(near[0], near[0]) if near else ""
            meant = f" (did you mean {kind!r}?)" if kind else ""
            raise UsageError(f"no fault {self.kind!r}{meant}: use {', '.join(SIGNALS)}")
        if not _SHORTEST_S <= self.every_s <= _LONGEST_S:
            raise UsageError(
                f"faults can come every {_SHORTEST_S:g} s to every 30 days, "
                f"not every {self.every_s:g} s"
            )

    @property
    def signal(self) -> signal.Signals:
        """The signal that makes this fault."""
        return SIGNALS[self.kind]

    def __str__(self) -> str:
        # Not %g: that would round, and write long intervals in a form no plan is read from.
        seconds = f"{self.every_s:.9f}".rstrip("0").rstrip(".")
        return f"{self.kind}@{seconds}s"


def parse(text: str) -> FaultPlan:
    """The plan written ``KIND@INTERVAL``, as in ``kill@3s``.

    An interval is a number with ``ms``, ``s``, ``m`` or ``h``; without a unit it is seconds.

    Raises UsageError for anything else; the text names what is near to what was meant.
    """
    kind, at, interval = (part.strip() for part in text.strip().lower().partition("@"))
    if not at:
        raise UsageError(f"fault plan {text!r} has no interval: write KIND@INTERVAL, as in kill@3s")
    match = _INTERVAL.fullmatch(interval)
    if not match:
        raise UsageError(f"{interval!r} is no interval in {text!r}: write 500ms, 3s, 2m or 1h")
    number, unit = match.groups()
    if unit not in _UNITS:
        near = get_close_matches(unit, [known for known in _UNITS if known], n=1, cutoff=0.3)
        meant = f" (did you mean {number}{near[0]}?)" if near else ""
        raise UsageError(f"no unit {unit!r} in {text!r}{meant}: use ms, s, m or h")
    return FaultPlan(kind, float(number) * _UNITS[unit])


def parse_all(text: str) -> tuple[FaultPlan, ...]:
    """The plans of a comma-separated list; none for an empty text. Raises as ``parse``."""
    if not text.strip():
        return ()
    return tuple(parse(part) for part in text.split(","))

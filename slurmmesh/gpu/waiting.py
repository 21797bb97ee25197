"""How to wait for what nobody announces: briefly at full speed, then ever more seldom."""

from __future__ import annotations

import time
from typing import Any

from slurmmesh.errors import UsageError

_SPIN_S = 50e-6
_SHARE = 8
_LONGEST_S = 0.01
_MOST_S = 1e9  # a timeout may be an int that is no float


class Deadline:
    """A limit that starts now. ``pause`` adds at most an eighth to a wait, or 10 ms."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._start = time.monotonic()

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self._start

    @property
    def left(self) -> float:
        """Seconds, 0 or more."""
        return max(0.0, self.seconds - self.elapsed)

    @property
    def over(self) -> bool:
        return self.elapsed >= self.seconds

    def pause(self) -> None:
        """Give others the time to go on."""
        elapsed = self.elapsed
        if elapsed > _SPIN_S:
            time.sleep(min(elapsed / _SHARE, _LONGEST_S))


def seconds_of(timeout: Any) -> float:
    """A timeout, checked."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise UsageError(f"timeout={timeout!r}: it is a number of seconds, more than 0")
    return float(min(timeout, _MOST_S))

"""How often Slurm may be asked: slurmctld serves a whole cluster, and we are one of many."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator


class RateLimit:
    """So many calls per second, and ``burst`` at once after a rest. Has no clock of its own."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._gap_s = 1.0 / per_second
        self._slack_s = (burst - 1) * self._gap_s
        self._next = -float("inf")
        self._lock = threading.Lock()

    def reserve(self, now: float) -> float:
        """Take the next place; returns the seconds from ``now`` after which the call may be made.

        ``now`` never runs backwards. Threads may share a limit.
        """
        with self._lock:
            place = max(self._next, now)
            self._next = place + self._gap_s
            return max(0.0, place - self._slack_s - now)


def back_off(
    first_s: float, longest_s: float, draw: Callable[[], float] = random.random
) -> Iterator[float]:
    """Pauses before asking again and again: each about twice the last, up to ``longest_s``.

    Each is between half of that and all of it, by ``draw`` (0 to 1), so that many processes that
    began together do not ask together.
    """
    pause = first_s
    while True:
        yield pause * (0.5 + draw() / 2)
        pause = min(pause * 2, longest_s)

"""Looks for news a moment longer before the thread is put to sleep.

To be put to sleep and woken costs a thread as much as the rest of a small call, in a virtual
machine more. Who asks and who answers in turns finds the other's message after some ten
microseconds, and so looks again and again for that long. Where that is in vain, since what is
asked for takes long or other processes need the processor, it is tried ever more seldom.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SPIN_S = 100e-6
"""So long a thread looks before it sleeps."""
_MOST = 31
"""So many waits in a row sleep at once, at most, because looking was in vain."""


class Spinner:
    """Waits of one loop. Idle loops do not spin: only the begin of a wait does."""

    def __init__(self) -> None:
        self._pause = 0
        self._left = 0

    def wait(self, poll: Callable[[float | None], list[T]], timeout: float | None) -> list[T]:
        """What ``poll`` finds, which waits for as long as it is told; at most ``timeout`` s."""
        if self._left:
            self._left -= 1
            return poll(timeout)
        if timeout is not None and timeout < SPIN_S:
            return poll(timeout)
        clock = time.monotonic
        end = clock() + SPIN_S
        while not (found := poll(0)):
            if clock() > end:
                self._left = self._pause = min(2 * self._pause + 1, _MOST)
                return poll(timeout)
        self._pause //= 2
        self._left = self._pause
        return found

"""Waiting until a link has sent what was queued on it, in whichever way."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slurmmesh.wire.driver import Bell

if TYPE_CHECKING:
    from slurmmesh.wire.links import Link


class Sent:
    """That a link has sent up to a position, or is closed. To be waited for (``wire/driver.py``).

    Args:
        wakers: whom the link wakes when it has sent something.
    """

    def __init__(self, link: Link, position: int, wakers: list[Callable[[], Any]]) -> None:
        self._link = link
        self._position = position
        self._wakers = wakers

    def done(self) -> bool:
        """Whether it has."""
        return self._link.sent_bytes >= self._position or self._link.closed

    def add_waker(self, wake: Callable[[], Any]) -> None:
        """See ``Awaited``; ``wake`` is called more than once, perhaps before it is done."""
        self._wakers.append(wake)
        if self.done():
            wake()

    def remove_waker(self, wake: Callable[[], Any]) -> None:
        """See ``Awaited``."""
        with contextlib.suppress(ValueError):
            self._wakers.remove(wake)

    def wait(self, timeout: float | None) -> bool:
        """Wait for it while another thread runs the loop; false if it took too long."""
        deadline = None if timeout is None else time.monotonic() + timeout
        bell = Bell()
        self.add_waker(bell.ring)
        try:
            while not self.done():
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    return False
                bell.wait(left)
            return True
        finally:
            self.remove_waker(bell.ring)

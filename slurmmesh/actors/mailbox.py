"""What waits to be handled by one thread, in order."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar

from slurmmesh.wire.driver import Bell, Driver

T = TypeVar("T")


class Mailbox(Generic[T]):
    """A queue that one thread empties and any may fill; can be waited for (``Awaited``).

    Args:
        driver: with whose ``wait`` the thread waits, if not with :meth:`wait`.
    """

    def __init__(self, driver: Driver | None = None) -> None:
        self._items: collections.deque[T] = collections.deque()
        self._driver = driver
        # Whether there is an item. Not a method: it is asked several times for each message.
        self.done: Callable[[], Any] = self._items.__len__
        self._wake: Callable[[], Any] | None = None

    def put(self, item: T) -> None:
        """Add an item and wake who waits."""
        self._items.append(item)
        if self._driver is not None:
            self._driver.poke()
        if self._wake is not None:
            self._tell()

    def put_first(self, item: T) -> None:
        """Add an item before all others and wake who waits."""
        self._items.appendleft(item)
        self._tell()

    def _tell(self) -> None:
        if self._driver is not None:
            self._driver.poke()
        wake = self._wake
        if wake is not None:
            wake()

    def take(self) -> T:
        """The oldest item. Raises IndexError if there is none."""
        return self._items.popleft()

    def waiting(self) -> Iterable[T]:
        """What is in it now. From any thread."""
        return self._items.copy()

    def clear(self) -> list[T]:
        """Drop all items; returns them."""
        items = []
        with contextlib.suppress(IndexError):
            while True:
                items.append(self._items.popleft())
        return items

    def add_waker(self, wake: Callable[[], Any]) -> None:
        """Call ``wake()`` when an item comes, at once if there is one; of one thread only."""
        self._wake = wake
        if self._items:
            wake()

    def remove_waker(self, _wake: Callable[[], Any]) -> None:
        """Take that back."""
        self._wake = None

    def wait(self) -> None:
        """Wait for an item, doing nothing else."""
        bell = Bell()
        while not self._items:
            self.add_waker(bell.ring)
            bell.wait()
        self._wake = None

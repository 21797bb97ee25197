"""Futures in asyncio: the user's event loop watches ours while a task of it awaits an answer.

So the thread of the task reads the answer itself, as a thread that waits in ``get`` does.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, Protocol

from slurmmesh.wire.driver import Driver


class _Waitable(Protocol):
    def add_waker(self, wake: Callable[[], Any]) -> None: ...
    def remove_waker(self, wake: Callable[[], Any]) -> None: ...


class _Guest:
    """Our loop as a guest of one of asyncio's."""

    def __init__(self, loop: asyncio.AbstractEventLoop, driver: Driver) -> None:
        # Not the loop itself: what is kept for a loop must not keep it.
        self._loop = weakref.ref(loop)
        self._driver = driver
        self._watching = False
        self.awaited = 0

    def come(self) -> None:
        """A task awaits an answer."""
        self.awaited += 1
        loop = self._loop()
        if not self._watching and loop is not None:
            with contextlib.suppress(NotImplementedError, ValueError):  # a loop without readers
                loop.add_reader(self._driver.reactor.fileno(), self._driver.try_turn)
                self._watching = True
        self._driver.free_from_background()
        self._driver.try_turn()

    def go(self) -> None:
        """A task awaits no longer."""
        self.awaited -= 1
        loop = self._loop()
        if not self.awaited and loop is not None and not loop.is_closed():
            loop.call_soon(self._leave)  # unless the task awaits the next one at once

    def _leave(self) -> None:
        loop = self._loop()
        if self._watching and not self.awaited and loop is not None:
            loop.remove_reader(self._driver.reactor.fileno())
            self._watching = False


_guests: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Driver, _Guest]] = (
    weakref.WeakKeyDictionary()
)


def until_done(future: _Waitable, driver: Driver | None) -> Generator[Any, None, None]:
    """Suspend the running task until ``future`` is done. Cancelling it leaves the future alone."""
    loop = asyncio.get_running_loop()
    thread = threading.get_ident()
    waiter: asyncio.Future[None] = loop.create_future()

    def wake() -> None:
        if not waiter.done():
            waiter.set_result(None)

    def done() -> None:
        if threading.get_ident() == thread:
            wake()
        elif not loop.is_closed():
            with contextlib.suppress(RuntimeError):  # it was closed this moment
                loop.call_soon_threadsafe(wake)

    guest = None
    if driver is not None:
        guests = _guests.setdefault(loop, {})
        guest = guests.get(driver) or guests.setdefault(driver, _Guest(loop, driver))
    future.add_waker(done)
    try:
        if guest is not None:
            guest.come()
        yield from waiter
    finally:
        future.remove_waker(done)
        if guest is not None:
            guest.go()

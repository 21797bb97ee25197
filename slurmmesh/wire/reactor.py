"""A small event loop: descriptors, timers, and calls from other threads.

One thread runs it. The controller and each proc run one in a thread of their own, a host
agent in its main thread. Callbacks must not block; one that raises is reported to
``on_error`` and the loop goes on.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import os
import selectors
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

READ = selectors.EVENT_READ
WRITE = selectors.EVENT_WRITE

_LONGEST_WAIT_S = 3600.0
"""The kernel takes no wait of any length; waking once an hour costs nothing."""

_here = threading.local()


class Timer:
    """Handle of :meth:`Reactor.call_later`."""

    __slots__ = ("callback", "cancelled")

    def __init__(self, callback: Callable[[], Any]) -> None:
        self.callback = callback
        self.cancelled = False

    def cancel(self) -> None:
        """Make it not fire. Safe at any time."""
        self.cancelled = True


def say(text: str) -> None:
    """A line on stderr. That nobody reads stderr any more is no reason to fail."""
    with contextlib.suppress(Exception):
        print(text, file=sys.stderr, flush=True)


def print_error() -> None:
    """The default ``on_error``: the traceback on stderr."""
    say(traceback.format_exc().rstrip())


def in_loop_thread() -> bool:
    """Whether the calling thread runs a loop: what waits there for news waits for ever."""
    return getattr(_here, "runs_loop", False)


class Reactor:
    """Waits on descriptors and timers and runs their callbacks.

    Args:
        clock: monotonic seconds; given by tests that run in virtual time.
        on_error: called in the except block of a callback that raised.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        on_error: Callable[[], None] = print_error,
    ) -> None:
        self.clock = clock
        self._on_error = on_error
        self._selector = selectors.DefaultSelector()
        self._watched: dict[int, Callable[[int], Any]] = {}
        self._calls: collections.deque[tuple[Callable[..., Any], tuple[Any, ...]]] = (
            collections.deque()
        )
        self._timers: list[tuple[float, int, Timer]] = []
        self._ticket = itertools.count()
        self._thread: int | None = None
        self._stopping = False
        # Reentrant: a signal handler may come in between and call as well.
        self._wake_lock = threading.RLock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._wake_read, READ, self._drain_wakeups)
        _open_reactors.add(self)

    @property
    def in_thread(self) -> bool:
        """True in the thread that runs the loop."""
        return self._thread == threading.get_ident()

    def watch(self, fd: int, events: int, callback: Callable[[int], Any]) -> None:
        """Call ``callback(events)`` when ``fd`` is readable or writable; replaces an earlier one.

        Only in the loop's thread, or before it runs. ``events`` 0 stops watching.
        """
        if not events:
            self.unwatch(fd)
            return
        change = self._selector.modify if fd in self._watched else self._selector.register
        change(fd, events)
        self._watched[fd] = callback

    def unwatch(self, fd: int) -> None:
        """Stop watching ``fd``; no matter if it was not watched."""
        if self._watched.pop(fd, None) is not None:
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(fd)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run ``callback(*args)`` in the loop's thread. From any thread."""
        self._calls.append((callback, args))
        if not self.in_thread:
            # The lock keeps the byte from going to a descriptor reused after the loop closed.
            with self._wake_lock, contextlib.suppress(OSError):  # full: a wake-up is under way
                os.write(self._wake_write, b"\0")

    def call_later(self, delay: float, callback: Callable[[], Any]) -> Timer:
        """Run ``callback`` in ``delay`` seconds. Only in the loop's thread, or before it runs."""
        timer = Timer(callback)
        heapq.heappush(self._timers, (self.clock() + delay, next(self._ticket), timer))
        return timer

    def run(self) -> None:
        """Run until :meth:`stop`, then close the loop's own descriptors."""
        self._thread = threading.get_ident()
        _here.runs_loop = True
        try:
            while not self._stopping:
                self._turn()
        finally:
            self._thread = None
            _here.runs_loop = False
            self._close()

    def stop(self) -> None:
        """End :meth:`run` after the callbacks of this turn. From any thread."""
        self.call_soon(self._stop)

    def _stop(self) -> None:
        self._stopping = True

    def _turn(self) -> None:
        ready = [
            (key.fd, self._watched[key.fd], events)
            for key, events in self._selector.select(self._wait_time())
        ]
        for fd, watcher, events in ready:
            # An earlier callback of this turn may have closed it, or opened another in its place.
            if self._watched.get(fd) is watcher:
                self.guard(watcher, events)
        for _ in range(len(self._calls)):
            callback, args = self._calls.popleft()
            self.guard(callback, *args)
        now = self.clock()
        while self._timers and self._timers[0][0] <= now:
            timer = heapq.heappop(self._timers)[2]
            if not timer.cancelled:
                self.guard(timer.callback)

    def _wait_time(self) -> float | None:
        if self._calls:
            return 0
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if not self._timers:
            return None
        return min(_LONGEST_WAIT_S, max(0.0, self._timers[0][0] - self.clock()))

    def guard(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run a callback; what it raises goes to ``on_error`` and no further."""
        try:
            callback(*args)
        except BaseException:  # SystemExit too: all that the loop serves would hang without it
            self._on_error()

    def _drain_wakeups(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._wake_read, 4096)) == 4096:
                pass

    def _close(self) -> None:
        _open_reactors.discard(self)
        self._watched.clear()
        self._selector.close()
        with self._wake_lock:
            for fd in (self._wake_read, self._wake_write):
                if fd >= 0:
                    os.close(fd)
            self._wake_read = self._wake_write = -1

    def _forget(self) -> None:
        """In a forked child: its loop is the parent's, and no thread here runs it."""
        self._wake_lock = threading.RLock()
        self._close()


_open_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for reactor in list(_open_reactors):
        reactor._forget()


os.register_at_fork(after_in_child=_after_fork_in_child)

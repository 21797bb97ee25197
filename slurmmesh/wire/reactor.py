"""A small event loop: descriptors, timers, and calls from other threads.

One thread at a time runs it: a host agent in its main thread, the controller in a thread of its
own, and where calls are to be quick whoever waits for news (``wire/driver.py``). Callbacks must
not block; one that raises is reported to ``on_error`` and the loop goes on.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import os
import select
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from slurmmesh.wire.spinning import Spinner

READ = 1
WRITE = 2
_READABLE = select.EPOLLIN

_LONGEST_WAIT_S = 3600.0
"""The kernel takes no wait of any length; waking once an hour costs nothing."""

_ATTEMPTS = 100
"""So often a callback that raises is run: no signal handlers interrupt the same one as often."""

_Call = tuple[Callable[..., Any], tuple[Any, ...]]
_running: set[int] = set()
"""Threads that run a loop."""


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
    return threading.get_ident() in _running


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
        self._epoll = select.epoll()
        self._watched: dict[int, Callable[[int], Any]] = {}
        self._first: set[int] = set()
        self._before_wait: collections.deque[_Call] = collections.deque()
        self.turns = 0
        """How often it has looked for news."""
        self.waiting = False
        """Whether a thread waits for news in here."""
        self.unattended = False
        """Whether nobody looks until there is news: what is to be done before a wait is news."""
        self.raising = False
        self.spinner: Spinner | None = None
        """Set while a thread leads that should not sleep at once."""
        self.sent_at = 0.0
        """When one of its links last sent a batch, by ``time.monotonic``."""
        self._calls: collections.deque[_Call] = collections.deque()
        self._failed: Callable[..., Any] | None = None
        self._failures = 0
        self._timers: list[tuple[float, int, Timer]] = []
        self._ticket = itertools.count()
        self._thread: int | None = None
        self.stopping = False
        # Reentrant: a signal handler may come in between and call as well.
        self._wake_lock = threading.RLock()
        self._wake_read, self._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(self._wake_read, READ, self._drain_wakeups)
        _open_reactors.add(self)

    @property
    def in_thread(self) -> bool:
        """True in the thread that runs the loop."""
        return self._thread == threading.get_ident()

    @property
    def has_work(self) -> bool:
        """Whether there is something to do besides waiting for news, now or at some time."""
        return bool(self.stopping or self._calls or self._before_wait or self._timers)

    def fileno(self) -> int:
        """A descriptor that is readable when there is news: one loop may be watched by another."""
        return self._epoll.fileno()

    def watch(
        self, fd: int, events: int, callback: Callable[[int], Any], first: bool = False
    ) -> None:
        """Call ``callback(events)`` when ``fd`` is readable or writable; replaces an earlier one.

        Only in the loop's thread, or before it runs. ``events`` 0 stops watching.

        Args:
            first: of all that is ready at one time, this comes before the others.
        """
        if not events:
            self.unwatch(fd)
            return
        mask = (select.EPOLLIN if events & READ else 0) | (select.EPOLLOUT if events & WRITE else 0)
        try:
            self._epoll.register(fd, mask)
        except FileExistsError:
            self._epoll.modify(fd, mask)
        self._watched[fd] = callback
        (self._first.add if first else self._first.discard)(fd)

    def unwatch(self, fd: int) -> None:
        """Stop watching ``fd``; no matter if it was not watched."""
        if self._watched.pop(fd, None) is not None:
            self._first.discard(fd)
            with contextlib.suppress(OSError, ValueError):
                self._epoll.unregister(fd)

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run ``callback(*args)`` in the loop's thread. From any thread."""
        self._calls.append((callback, args))
        if self.waiting or not self.in_thread:  # in a signal handler it may be both
            self.wake()

    def before_wait(self, callback: Callable[[], Any]) -> None:
        """Run ``callback()`` once before a thread next waits for news. From any thread."""
        self._before_wait.append((callback, ()))
        if self.unattended or self.waiting:
            self.wake()

    def wake(self) -> None:
        """Have the thread that waits for news look at once. From any thread."""
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
        self.enter()
        try:
            while not self.stopping:
                self.turn()
        finally:
            self.leave()
            self.close()

    def enter(self) -> int:
        """The calling thread runs the loop from here on, until :meth:`leave`; returns its id."""
        self._thread = me = threading.get_ident()
        _running.add(me)
        return me

    def leave(self) -> None:
        """The calling thread no longer runs the loop."""
        if self._thread is not None:
            _running.discard(self._thread)
        self._thread = None

    def stop(self) -> None:
        """End :meth:`run` after the callbacks of this turn. From any thread."""
        self.call_soon(self._stop)

    def _stop(self) -> None:
        self.stopping = True

    def turn(self, timeout: float | None = None) -> bool:
        """Wait for news, at most ``timeout`` seconds, and run what it calls for.

        Whether there was news of a descriptor.
        """
        # Announced first: what is to be done before the wait and comes too late wakes us.
        self.waiting = True
        try:
            while self._before_wait:
                self._run_first(self._before_wait)
            if self._timers or self._calls or self._before_wait:
                timeout = self._wait_time(timeout)
            if self.spinner is not None:
                ready = self.spinner.wait(self._epoll.poll, timeout)
            else:
                ready = self._epoll.poll(timeout)
        finally:
            self.waiting = False
        self.turns += 1
        if len(ready) > 1 and self._first:
            ready.sort(key=lambda each: each[0] not in self._first)
        if len(ready) == 1:  # the usual case, with as few steps as it takes
            fd, mask = ready[0]
            watcher = self._watched.get(fd)
            if watcher is not None:
                try:
                    watcher(READ if mask == _READABLE else _events(mask))
                except BaseException:
                    if self.raising:
                        raise
                    self._on_error()
        elif ready:
            watchers = [(fd, mask, self._watched.get(fd)) for fd, mask in ready]
            for fd, mask, watcher in watchers:
                # An earlier callback of this turn may have closed it, or opened another instead.
                if watcher is not None and self._watched.get(fd) is watcher:
                    self.guard(watcher, _events(mask))
        if self._calls:
            for _ in range(len(self._calls)):
                self._run_first(self._calls)
        if self._timers:
            self._fire()
        return bool(ready)

    def _run_first(self, calls: collections.deque[_Call]) -> None:
        """Run the first of these and then drop it: if a signal handler raises, it is run again."""
        try:
            call = calls[0]
        except IndexError:  # a signal handler waited, and so ran the loop meanwhile
            return
        self._attempt(*call)
        if calls and calls[0] is call:
            calls.popleft()

    def _fire(self) -> None:
        now = self.clock()
        while self._timers and self._timers[0][0] <= now:
            timer = self._timers[0][2]
            if not timer.cancelled:
                self._attempt(timer.callback, ())
            timer.cancelled = True
            while self._timers and self._timers[0][2].cancelled:
                heapq.heappop(self._timers)

    def _attempt(self, callback: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Run a callback that is run again if it raises through here, but not for ever."""
        try:
            self.guard(callback, *args)
        except BaseException:
            if callback is not self._failed:
                self._failed, self._failures = callback, 0
            self._failures += 1
            if self._failures < _ATTEMPTS:
                raise
            self._failed = None
            self._on_error()

    def _wait_time(self, timeout: float | None) -> float | None:
        if self._calls or self._before_wait:
            return 0
        while self._timers and self._timers[0][2].cancelled:
            heapq.heappop(self._timers)
        if self._timers:
            left = min(_LONGEST_WAIT_S, max(0.0, self._timers[0][0] - self.clock()))
            return left if timeout is None else min(left, timeout)
        return timeout

    def guard(self, callback: Callable[..., Any], *args: Any) -> None:
        """Run a callback; what it raises goes to ``on_error`` and no further.

        Unless ``raising`` is set: then a signal handler may raise through it.
        """
        if self.raising:
            callback(*args)
            return
        try:
            callback(*args)
        except BaseException:  # SystemExit too: all that the loop serves would hang without it
            self._on_error()

    def report(self) -> None:
        """Tell ``on_error`` of the exception that is being handled."""
        self._on_error()

    def _drain_wakeups(self, _events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(os.read(self._wake_read, 4096)) == 4096:
                pass

    def close(self) -> None:
        """Close the loop's own descriptors; when no thread runs it."""
        _open_reactors.discard(self)
        self._watched.clear()
        self._epoll.close()
        with self._wake_lock:
            for fd in (self._wake_read, self._wake_write):
                if fd >= 0:
                    os.close(fd)
            self._wake_read = self._wake_write = -1

    def _forget(self) -> None:
        """In a forked child: its loop is the parent's, and no thread here runs it."""
        self._wake_lock = threading.RLock()
        self.close()


def _events(mask: int) -> int:
    """READ, WRITE or both of what the kernel tells; what is broken is readable."""
    events = WRITE if mask & select.EPOLLOUT else 0
    return events | READ if mask & ~select.EPOLLOUT else events


_open_reactors: weakref.WeakSet[Reactor] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    _running.clear()
    for reactor in list(_open_reactors):
        reactor._forget()


os.register_at_fork(after_in_child=_after_fork_in_child)

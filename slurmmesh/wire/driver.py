"""Which thread runs a loop: one that waits for news of it, or else one in the background.

A thread that waits for an answer reads the socket itself, so that no other thread has to be
woken to hand it over. Others that wait meanwhile follow the one that leads. When none waits, a
thread in the background takes the loop, a little later, so that it is not in the way between
two calls. It sleeps while somebody leads, and then until something comes that nobody reads.
"""

from __future__ import annotations

import collections
import contextlib
import os
import select
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Protocol

from slurmmesh.wire.reactor import Reactor
from slurmmesh.wire.spinning import Spinner

TICK_S = 0.002
"""So long nobody must have run the loop before the thread in the background does."""
_PUT_OFF = 10
"""So many ticks the background leaves the loop alone while a thread only sends."""
_PATIENCE_S = 0.1
"""How long the background may take to leave; then somebody else has the loop."""
_ONCE = select.EPOLLIN | select.EPOLLONESHOT


class Awaited(Protocol):
    """What can be waited for. Whoever makes it done calls ``poke`` of the driver."""

    def done(self) -> bool:
        """Whether it is there."""

    def add_waker(self, wake: Callable[[], Any]) -> None:
        """Have ``wake()`` called once it is there, at once if it is; from any thread."""

    def remove_waker(self, wake: Callable[[], Any]) -> None:
        """Take that back; no matter if it was called."""


class Bell:
    """One thread waits for it, others ring it; rung twice is rung once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def ring(self) -> None:
        """Wake who waits, or who will. From any thread."""
        with contextlib.suppress(RuntimeError):
            self._lock.release()

    def wait(self, timeout: float | None = None) -> None:
        """Wait until it is rung, at most ``timeout`` seconds of at least 0."""
        self._lock.acquire(timeout=-1 if timeout is None else timeout)


class Driver:
    """Runs one loop in turns with whoever waits for its news.

    Args:
        name: of the thread in the background.
    """

    def __init__(self, reactor: Reactor, name: str) -> None:
        self.reactor = reactor
        self._name = name
        self._turn = threading.RLock()  # reentrant only so that its owner can be told
        self._main_thread = threading.main_thread().ident
        self._spinner = Spinner()
        self._leader = 0
        self._background_leads = False
        self._closed_by_leader = False
        self._wanted = 0
        self._followers: collections.deque[Bell] = collections.deque()
        self._asleep = False
        # Ready when the loop has news and this was asked for: the background sleeps on it.
        self._news = select.epoll()
        self._loop = reactor.fileno()
        self._news.register(self._loop, 0)
        self._thread: threading.Thread | None = None
        _open_drivers.add(self)

    def start(self) -> None:
        """Start the thread in the background."""
        self._thread = threading.Thread(target=self._background, name=self._name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End it, and the loop. Not in a callback.

        In a signal handler that interrupted the loop, the loop's own descriptors are closed when
        what was interrupted goes on.
        """
        self._closed_by_leader = self.leads_here
        self.reactor.stop()
        if self._closed_by_leader:
            self.reactor.stopping = True
        if self._asleep:
            with contextlib.suppress(ValueError):  # it has woken and ended meanwhile
                self._leave_alone()
        if self._thread is not None:
            self._thread.join()

    def wait(self, awaited: Awaited, timeout: float | None = None) -> bool:
        """Wait until it is done, running the loop if no other thread that waits does.

        Args:
            timeout: in seconds.

        Returns:
            whether it is done. Not to be called in a callback of the loop.
        """
        done = awaited.done
        if done():
            return True
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._leader and self.leads_here and not self.reactor.stopping:
            self._run(done, deadline)
            self.reactor.wake()  # what the handler interrupted looks again
            return done()
        try:
            while True:
                if self.reactor.stopping:
                    self._give_back()
                    self._sleep(awaited, Bell(), deadline)
                elif self._turn.acquire(False) or self._displace_background():
                    self._lead(done, deadline)
                    self._give_back()  # here, so that a handler may raise as it begins
                else:
                    self._follow(awaited, deadline)
                if done():
                    return True
                if deadline is not None and time.monotonic() >= deadline:
                    return False
        finally:
            if self._turn._is_owned():  # type: ignore[attr-defined]
                self._give_back()

    @property
    def leads_here(self) -> bool:
        """Whether the calling thread runs the loop already: a signal handler interrupted it."""
        return self._leader != 0 and self._leader == threading.get_ident()

    def try_turn(self) -> None:
        """Look for news without waiting, if no thread runs the loop. For other event loops."""
        try:
            if self._turn.acquire(False) and not self.reactor.stopping:
                self.reactor.enter()
                self.reactor.turn(0)
        finally:
            self._give_back()

    def free_from_background(self) -> None:
        """Have the background leave the loop to whoever comes within the next tick."""
        try:
            self._displace_background()
        finally:
            self._give_back()

    def poke(self) -> None:
        """Something that may be waited for is done: whoever leads looks. From any thread."""
        leader = self._leader
        # In a signal handler it is this thread that waits, and goes on to wait after it.
        if leader and (self.reactor.waiting or leader != threading.get_ident()):
            self.reactor.wake()

    def _lead(self, done: Callable[[], bool], deadline: float | None) -> None:
        reactor = self.reactor
        self._leader = me = reactor.enter()
        reactor.raising = me == self._main_thread
        reactor.spinner = self._spinner
        if self._asleep:
            self._attend()
        self._run(done, deadline)

    def _run(self, done: Callable[[], bool], deadline: float | None) -> None:
        reactor = self.reactor
        turn = reactor.turn
        if deadline is None:
            while not done() and not reactor.stopping:
                turn()
            return
        while not done() and not reactor.stopping:
            left = deadline - time.monotonic()
            if left <= 0:
                return
            turn(left)

    def _give_back(self) -> None:
        """Give up the lead if this thread has it, in whatever moment it was interrupted."""
        try:
            if not self._turn._is_owned():  # type: ignore[attr-defined]
                return
            self._leader = 0
            self.reactor.raising = False
            self.reactor.spinner = None
            self.reactor.leave()
            if self._closed_by_leader:
                self._close()
            try:
                self._turn.release()
            finally:
                if self._asleep:  # looked at after the release: it looks whether anybody leads
                    self._leave_alone()
            if self._followers:
                self._next_leader()
        except BaseException:  # a signal handler's, here of all places
            self._give_back()
            raise

    def _next_leader(self) -> None:
        with contextlib.suppress(IndexError):
            self._followers.popleft().ring()

    def _follow(self, awaited: Awaited, deadline: float | None) -> None:
        """Wait until it is done, or until this thread may lead."""
        bell = Bell()
        self._followers.append(bell)
        try:
            # It may have become free before we stood in the line: then nobody would call us.
            if not self._is_free():
                self._sleep(awaited, bell, deadline)
        finally:
            try:
                self._followers.remove(bell)
            except ValueError:
                # Called to lead. If that is not wanted any more, it is the next one's turn.
                if awaited.done():
                    self._next_leader()

    def _sleep(self, awaited: Awaited, bell: Bell, deadline: float | None) -> None:
        awaited.add_waker(bell.ring)
        try:
            if not awaited.done():
                bell.wait(None if deadline is None else max(0.0, deadline - time.monotonic()))
        finally:
            awaited.remove_waker(bell.ring)

    def _is_free(self) -> bool:
        if not self._turn.acquire(False):
            return False
        self._turn.release()
        if self._asleep:  # it may have looked this moment, and taken us for a leader
            self._leave_alone()
        return True

    def _displace_background(self) -> bool:
        """Take the lead from the background; false if it has not got it."""
        if not self._background_leads:
            return False
        self._wanted += 1
        try:
            self.reactor.wake()
            return self._turn.acquire(timeout=_PATIENCE_S)
        finally:
            self._wanted -= 1

    def _leave_alone(self) -> None:
        """Nobody leads: what comes now wakes the background."""
        reactor = self.reactor
        reactor.unattended = True
        self._news.modify(self._loop, _ONCE)
        if reactor.has_work:
            reactor.wake()

    def _attend(self) -> None:
        """Somebody leads: the background may sleep."""
        self.reactor.unattended = False
        self._news.modify(self._loop, 0)

    def _close(self) -> None:
        self.reactor.close()
        self._news.close()

    # -- the thread in the background -----------------------------------------------------------

    def _background(self) -> None:
        reactor = self.reactor
        seen = -1
        put_off = 0
        while not reactor.stopping:
            if reactor.turns != seen:
                seen = reactor.turns
            elif put_off < _PUT_OFF and self._somebody_sends:
                put_off += 1
            elif self._turn.acquire(False):
                self._run_in_background()
                seen = -1
                put_off = 0
            else:
                self._sleep_until_news(seen)
            time.sleep(TICK_S)
        if not self._closed_by_leader:
            with self._turn:
                self._close()

    @property
    def _somebody_sends(self) -> bool:
        """Whether a thread sends much now: it will read soon, and is only held up until then."""
        return time.monotonic() - self.reactor.sent_at < TICK_S / 2

    def _sleep_until_news(self, seen: int) -> None:
        """While somebody leads, and until something comes while nobody does."""
        reactor = self.reactor
        self._asleep = True
        if reactor.turns == seen and not self._is_free():
            self._news.poll()
        self._asleep = False
        reactor.unattended = False

    def _run_in_background(self) -> None:
        reactor = self.reactor
        self._background_leads = True
        try:
            reactor.enter()
            while not reactor.stopping and not self._wanted:
                if not self._somebody_sends:
                    reactor.turn()
                elif not reactor.turn(0):
                    break
        finally:
            reactor.leave()
            self._background_leads = False
            self._turn.release()
            self._next_leader()

    def _forget(self) -> None:
        """In a forked child: the loop is the parent's, and no thread here runs it."""
        self._turn = threading.RLock()
        self._background_leads = self._asleep = False
        self._followers.clear()
        self._news.close()


_open_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for driver in list(_open_drivers):
        driver._forget()


os.register_at_fork(after_in_child=_after_fork_in_child)

"""Deadlines of calls: what is due first expires first."""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from slurmmesh.actors.future import Future
from slurmmesh.errors import CallTimeout, ExitCause
from slurmmesh.wire.reactor import Reactor, Timer

_SPARE = 64
"""So many that are met may lie around before they are cleared away."""
_NAMED = 8
"""So many ranks or deaths are named in a text; of more, the number is."""


class Deadline:
    """Handle of :meth:`Deadlines.add`."""

    __slots__ = ("_deadlines", "at", "expire")

    def __init__(self, deadlines: Deadlines, at: float, expire: Callable[[], Any]) -> None:
        self._deadlines = deadlines
        self.at = at
        self.expire: Callable[[], Any] | None = expire

    def met(self) -> None:
        """It will not expire. From any thread, at any time, also again."""
        if self.expire is not None:
            self.expire = None
            self._deadlines._one_met()


class Deadlines:
    """Deadlines on one timer of a loop. To be used from any thread.

    Those that are met cost nothing until their time: they are cleared away when they are many.
    """

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._lock = threading.RLock()  # a signal handler may call while we are at it
        self._heap: list[tuple[float, int, Deadline]] = []
        self._order = itertools.count()
        self._met = 0
        self._timer: Timer | None = None
        self._due = 0.0

    def __len__(self) -> int:
        """How many are kept, met ones included."""
        return len(self._heap)

    def add(self, seconds: float, expire: Callable[[], Any]) -> Deadline:
        """Have ``expire()`` called in the loop's thread in so many seconds, unless it is met."""
        deadline = Deadline(self, self._reactor.clock() + seconds, expire)
        with self._lock:
            heapq.heappush(self._heap, (deadline.at, next(self._order), deadline))
            is_first = self._heap[0][2] is deadline
        if is_first:
            self._reactor.call_soon(self._arm)
        return deadline

    def limit(
        self,
        last: Future[Any],
        seconds: float,
        what: str,
        asked: int,
        missing: Callable[[], Sequence[int]],
        fail: Callable[[CallTimeout], Any],
        deaths: Callable[[float], Sequence[ExitCause]] = lambda _since: (),
    ) -> None:
        """Fail a call in so many seconds unless its last future is done by then.

        Args:
            asked: of so many ranks.
            missing: the ranks that have not answered.
            deaths: of ranks of the mesh since a time of the loop's clock.
        """
        began = self._reactor.clock()

        def expire() -> None:
            fail(too_late(what, seconds, missing(), asked, deaths(began)))

        last.add_waker(self.add(seconds, expire).met)

    def _one_met(self) -> None:
        with self._lock:
            self._met += 1
            if self._met > _SPARE and 2 * self._met > len(self._heap):
                self._heap = [entry for entry in self._heap if entry[2].expire is not None]
                heapq.heapify(self._heap)
                self._met = 0

    def _arm(self) -> None:
        """Set the timer for the first of them. In the loop's thread."""
        with self._lock:
            if not self._heap:
                return
            due = self._heap[0][0]
            if self._timer is not None:
                if self._due <= due:
                    return
                self._timer.cancel()
            self._due = due
            delay = max(0.0, due - self._reactor.clock())
            self._timer = self._reactor.call_later(delay, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._reactor.clock()
        while True:
            with self._lock:
                if not self._heap or self._heap[0][0] > now:
                    break
                deadline = heapq.heappop(self._heap)[2]
                expire, deadline.expire = deadline.expire, None
                if expire is None:
                    self._met = max(0, self._met - 1)
            if expire is not None:
                self._reactor.guard(expire)
        self._arm()


def too_late(
    what: str, seconds: float, missing: Sequence[int], asked: int, deaths: Sequence[ExitCause]
) -> CallTimeout:
    """The error of a call that has not been answered in time.

    Args:
        missing: ranks that have not answered, of ``asked``.
        deaths: of ranks of the mesh since the call: likely why.
    """
    named = ", ".join(map(str, sorted(missing)[:_NAMED]))
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    whom = f"rank{'s' if len(missing) > 1 else ''} {named}{more}"
    text = f"{what} gave no answer within {seconds:g} s from {whom} ({len(missing)} of {asked})"
    if deaths:
        text += "; meanwhile " + "; ".join(death.describe() for death in deaths[:_NAMED])
    return CallTimeout(text, ranks=tuple(sorted(missing)), seconds=seconds, deaths=tuple(deaths))

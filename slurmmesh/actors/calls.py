"""The caller's book of open calls: who still owes an answer, and what to do with each answer.

It is for what goes by the hosts; a direct link keeps its own calls (``actors/direct.py``).
"""

from __future__ import annotations

import collections
import functools
import itertools
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from slurmmesh.actors.direct import Leg, Sink, answer_of, not_loaded
from slurmmesh.actors.future import Future
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Frame

Then = Callable[[], Any]
"""What is to be done once the book's lock is free: it wakes threads and runs code of users."""


class _Open:
    """An open call or cast: which ranks it waits for, and the places that wait to know.

    A cast waits for the news that it was delivered, and does nothing with it.
    """

    def __init__(self, mesh: int, ranks: Sequence[int], places: Mapping[int, Leg]) -> None:
        self.mesh = mesh
        self.slots = {rank: index for index, rank in enumerate(ranks)}
        self.places = places
        self.over = False

    def take(self, ranks: Iterable[int]) -> list[int]:
        """Cross these ranks off; returns the indices of those that had not answered."""
        indices = []
        for rank in ranks:
            index = self.slots.pop(rank, None)
            if index is not None:
                indices.append(index)
                if self.places and (leg := self.places.get(rank)) is not None:
                    leg.arrive()
        return indices

    def note(self, ranks: Collection[int], value: Any) -> None:
        """Keep what those of these ranks say that are not crossed off yet.

        Before they are: a signal handler may raise in between, and then it comes again.
        """

    def answered(self, indices: list[int], value: Any) -> Then | None:
        """These answered. With the lock held."""
        return None

    def failed(self, indices: list[int], error: BaseException) -> Then | None:
        """It failed, because of these where that is known. With the lock held."""
        self.over = True
        return None


class _OpenMarker(_Open):
    """A cast of which ``arrived`` is told which ranks have got it, or never will."""

    def __init__(
        self, mesh: int, ranks: Sequence[int], arrived: Callable[[list[int]], Any]
    ) -> None:
        super().__init__(mesh, ranks, {})
        self.ranks = ranks
        self.arrived = arrived

    def answered(self, indices: list[int], value: Any) -> Then | None:
        return functools.partial(self.arrived, [self.ranks[index] for index in indices])

    def failed(self, indices: list[int], error: BaseException) -> Then | None:
        return self.answered(indices, None)


class _OpenCall(_Open):
    """A value per rank, in the order of the ranks called.

    It stays in the book after it failed while some rank may not have got it yet.
    """

    def __init__(
        self,
        mesh: int,
        ranks: Sequence[int],
        places: Mapping[int, Leg],
        future: Future[Any],
        finish: Callable[..., Any],
    ) -> None:
        super().__init__(mesh, ranks, places)
        self.values: list[Any] = [None] * len(ranks)
        self.future = future
        self.finish = finish

    def note(self, ranks: Collection[int], value: Any) -> None:
        if not self.over:
            for rank in ranks:
                if (index := self.slots.get(rank)) is not None:
                    self.values[index] = value

    def answered(self, indices: list[int], value: Any) -> Then | None:
        return None if self.slots or self.over else self._settle

    def failed(self, indices: list[int], error: BaseException) -> Then | None:
        if self.over:
            return None
        self.over = True
        self.values = []
        return functools.partial(self.future.set_exception, error)

    def _settle(self) -> None:
        try:
            result = self.finish(self.values)
        except BaseException as error:
            self.future.set_exception(not_loaded(error))
        else:
            self.future.set_result(result)


class _OpenStream(_Open):
    """Each rank's answer or error goes to ``sink`` when it comes."""

    def __init__(
        self, mesh: int, ranks: Sequence[int], places: Mapping[int, Leg], sink: Sink
    ) -> None:
        super().__init__(mesh, ranks, places)
        self.sink = sink

    def answered(self, indices: list[int], value: Any) -> Then | None:
        return functools.partial(self._tell, len(indices), value, None)

    def failed(self, indices: list[int], error: BaseException) -> Then | None:
        return functools.partial(self._tell, len(indices), None, error)

    def _tell(self, times: int, value: Any, error: BaseException | None) -> None:
        for _ in range(times):
            self.sink(value, error)


class CallBook:
    """Open calls by id. Safe to use from any thread.

    Args:
        lock: guards the places as well.
        driver: of the loop by which answers come, if those who wait run it.
    """

    def __init__(self, lock: threading.RLock | None = None, driver: Driver | None = None) -> None:
        self.driver = driver
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._lock = lock or threading.RLock()  # a signal handler may call while we are at it

    def open(
        self,
        mesh: int,
        ranks: Sequence[int],
        finish: Callable[[list[Any]], Any],
        what: str,
        places: Mapping[int, Leg] | None = None,
        future: Future[Any] | None = None,
    ) -> tuple[int, Future[Any]]:
        """Note a call before it is sent.

        Args:
            finish: makes the future's value of the list of answers, ordered as ``ranks``.
            places: of ranks whose place is told when the call is known to have arrived; more
                may be put in while it is sent.
            future: to be settled; None: a new one.

        Returns:
            the call's id and its future.
        """
        future = future or Future(what, self.driver)
        places = {} if places is None else places
        call = self._note(_OpenCall(mesh, ranks, places, future, finish))
        return call, future

    def open_stream(
        self, mesh: int, ranks: Sequence[int], sink: Sink, places: Mapping[int, Leg]
    ) -> int:
        """Note a call whose answers go to ``sink``, one by one; returns its id."""
        return self._note(_OpenStream(mesh, ranks, places, sink))

    def open_cast(self, mesh: int, ranks: Sequence[int], places: Mapping[int, Leg]) -> int:
        """Note a cast, to tell these places when it is known to have arrived; returns its id."""
        return self._note(_Open(mesh, ranks, places))

    def open_marker(
        self, mesh: int, ranks: Sequence[int], arrived: Callable[[list[int]], Any]
    ) -> int:
        """Note a cast; ``arrived`` is told of each rank that has got it, or never will."""
        return self._note(_OpenMarker(mesh, ranks, arrived))

    def _note(self, opened: _Open) -> int:
        call = next(self._ids)
        with self._lock:
            self._open[call] = opened
        return call

    def missing(self, call_id: int) -> tuple[int, ...]:
        """The ranks that have not answered a call."""
        with self._lock:
            call = self._open.get(call_id)
            return tuple(call.slots) if call is not None else ()

    def answer(self, frame: Frame) -> None:
        """Take a RESULT or ERROR frame. Answers to calls that are no longer open are ignored."""
        value, error = answer_of(frame)
        if error is not None:
            self.fail(frame.call, error, frame.ranks)
        else:
            self.answer_ranks(frame.call, frame.ranks, value)

    def answer_ranks(self, call_id: int, ranks: Collection[int], value: Any) -> None:
        """Note what these ranks answered to a call, or have got a cast; the last one settles it."""
        with self._lock:
            call = self._open.get(call_id)
            if call is None:
                return
            call.note(ranks, value)
            indices = call.take(ranks)
            then = call.answered(indices, value)
            if not call.slots:
                del self._open[call_id]
        if then is not None:
            then()

    def fail(self, call_id: int, error: BaseException, ranks: Iterable[int] | None = None) -> None:
        """End a call with an error, which came from these ranks; None: from none of them.

        Of a stream, these ranks' answers are the error; None: all that have not come.
        """
        with self._lock:
            call = self._open.get(call_id)
            if call is None:
                return
            if ranks is None:
                ranks = list(call.slots) if isinstance(call, _OpenStream) else ()
            then = call.failed(call.take(ranks), error)
            if not call.slots or (call.over and not call.places):
                del self._open[call_id]
        if then is not None:
            then()

    def fail_ranks(
        self,
        mesh: int,
        ranks: Iterable[int],
        error: BaseException,
        but: Container[int] = (),
    ) -> None:
        """End every call but these that waits for one of these ranks: their processes are gone."""
        gone = set(ranks)
        with self._lock:
            hit = [
                call_id
                for call_id, call in self._open.items()
                if call.mesh == mesh and call_id not in but and not gone.isdisjoint(call.slots)
            ]
        for call_id in hit:
            self.fail(call_id, error, gone)

    def fail_mesh(self, mesh: int, error: BaseException) -> None:
        """End every call to a mesh."""
        with self._lock:
            hit = [
                (call_id, list(call.slots))
                for call_id, call in self._open.items()
                if call.mesh == mesh
            ]
        for call_id, ranks in hit:
            self.fail(call_id, error, ranks)


def settle(
    future: Future[Any],
    finish: Callable[[list[Any]], Any],
    value: Any,
    error: BaseException | None,
) -> None:
    """Settle the future of a call to one rank."""
    if error is None:
        try:
            value = finish([value])
        except BaseException as raised:  # code of the user's classes
            error = not_loaded(raised)
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)


def in_order(futures: Sequence[Future[Any]]) -> Sink:
    """Settles one future with each answer, the first with the first that comes."""
    waiting = collections.deque(futures)

    def take(value: Any, error: BaseException | None) -> None:
        future = waiting.popleft()
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    return take

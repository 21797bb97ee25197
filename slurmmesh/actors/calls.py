"""The caller's book of open calls: who still owes an answer, and what to do with each answer.

It is for what goes by the hosts; a direct link keeps its own calls (``actors/direct.py``).
"""

from __future__ import annotations

import collections
import itertools
import threading
from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from typing import Any

from slurmmesh.actors.direct import Leg, answer_of, not_loaded
from slurmmesh.actors.future import Future
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Frame

SinkOf = Callable[[int, Any, "BaseException | None"], Any]
"""Takes a rank and its value, or its error. May be told the same once more."""


class _Open:
    """An open call or cast: which ranks it waits for, and the places that wait to know.

    A cast waits for the news that it was delivered, and does nothing with it.

    A signal handler may raise at any moment; then the same news comes again. So it is noted first,
    then its ranks are crossed off, then it is told, and each of these does no harm if done twice.
    """

    def __init__(self, mesh: int, ranks: Sequence[int], places: Mapping[int, Leg]) -> None:
        self.mesh = mesh
        self.slots = {rank: index for index, rank in enumerate(ranks)}
        self.places = places
        self.over = False

    @property
    def is_settled(self) -> bool:
        """Whether nothing more is to be known of it."""
        return not self.slots or (self.over and not self.places)

    def cross_off(self, ranks: Iterable[int]) -> None:
        """These ranks have answered, or have got it, or never will. With the lock held."""
        for rank in ranks:
            index = self.slots.pop(rank, None)
            if index is not None and self.places and (leg := self.places.get(rank)) is not None:
                leg.arrive()

    def note(self, ranks: Iterable[int], value: Any) -> None:
        """Keep what those of these ranks say that are not crossed off. With the lock held."""

    def note_failure(self, ranks: Iterable[int], error: BaseException) -> None:
        """It failed, because of these where that is known. With the lock held."""
        self.over = True

    def tell(self) -> None:
        """Tell what is noted. It wakes threads and runs code of users: with no lock held."""


class _OpenMarker(_Open):
    """A cast of which ``arrived`` is told which ranks have got it, or never will."""

    def __init__(
        self, mesh: int, ranks: Sequence[int], arrived: Callable[[list[int]], Any]
    ) -> None:
        super().__init__(mesh, ranks, {})
        self._arrived = arrived
        self._untold: dict[int, None] = {}

    def note(self, ranks: Iterable[int], value: Any) -> None:
        self._untold.update((rank, None) for rank in ranks if rank in self.slots)

    def note_failure(self, ranks: Iterable[int], error: BaseException) -> None:
        self.note(ranks, None)

    def tell(self) -> None:
        if ranks := list(self._untold):
            self._arrived(ranks)
            for rank in ranks:
                self._untold.pop(rank, None)


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
        self._values: list[Any] = [None] * len(ranks)
        self._future = future
        self._finish = finish
        self._error: BaseException | None = None

    def note(self, ranks: Iterable[int], value: Any) -> None:
        if not self.over:
            for rank in ranks:
                if (index := self.slots.get(rank)) is not None:
                    self._values[index] = value

    def note_failure(self, ranks: Iterable[int], error: BaseException) -> None:
        if self._error is None:
            self._error = error
        super().note_failure(ranks, error)
        self._values = []

    def tell(self) -> None:
        if self._error is not None:
            self._future.set_exception(self._error)
        elif not (self.slots or self._future.done()):
            settle(self._future, self._finish, self._values, None)


class _OpenStream(_Open):
    """Each rank's answer or error goes to ``sink`` when it comes."""

    def __init__(
        self, mesh: int, ranks: Sequence[int], places: Mapping[int, Leg], sink: SinkOf
    ) -> None:
        super().__init__(mesh, ranks, places)
        self._sink = sink
        self._untold: dict[int, tuple[Any, BaseException | None]] = {}

    def note(self, ranks: Iterable[int], value: Any, error: BaseException | None = None) -> None:
        self._untold.update((rank, (value, error)) for rank in ranks if rank in self.slots)

    def note_failure(self, ranks: Iterable[int], error: BaseException) -> None:
        self.note(ranks, None, error)

    def tell(self) -> None:
        for rank, told in list(self._untold.items()):
            self._sink(rank, *told)
            self._untold.pop(rank, None)


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
        self, mesh: int, ranks: Sequence[int], sink: SinkOf, places: Mapping[int, Leg]
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
            call.cross_off(ranks)
        self._tell(call_id, call)

    def fail(
        self, call_id: int, error: BaseException, ranks: Collection[int] | None = None
    ) -> None:
        """End a call with an error, which came from these ranks; None: from none of them.

        Of a stream, these ranks' answers are the error; None: all that have not come.
        """
        with self._lock:
            call = self._open.get(call_id)
            if call is None:
                return
            if ranks is None:
                ranks = list(call.slots) if isinstance(call, _OpenStream) else ()
            call.note_failure(ranks, error)
            call.cross_off(ranks)
        self._tell(call_id, call)

    def drop(self, call_id: int) -> None:
        """Forget a call: nobody is told of it any more."""
        self._open.pop(call_id, None)

    def _tell(self, call_id: int, call: _Open) -> None:
        call.tell()
        if call.is_settled:
            self._open.pop(call_id, None)

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
    values: list[Any],
    error: BaseException | None,
) -> None:
    """Settle the future of a call with what ``finish`` makes of the answers, or an error."""
    if error is None:
        try:
            result = finish(values)
        except (Exception, SystemExit) as raised:  # others are a signal handler's
            error = not_loaded(raised)
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def in_order(futures: Sequence[Future[Any]]) -> SinkOf:
    """Settles one future with the answer of each rank, the first with the first that comes."""
    # Made in one step of the interpreter: whoever answers once more gets the same future.
    of_rank: dict[int, Future[Any]] = collections.defaultdict(iter(futures).__next__)

    def take(rank: int, value: Any, error: BaseException | None) -> None:
        future = of_rank[rank]
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)

    return take

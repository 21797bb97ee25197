"""The caller's book of open calls: who still owes an answer, and what to do with each answer.

It is for what goes by the hosts; a direct link keeps its own calls (``actors/direct.py``).
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any

from slurmmesh.actors.direct import Place, answer_of, not_loaded
from slurmmesh.actors.future import Future
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Frame


class _Open:
    """One open call: a value per rank, in the order of the ranks called.

    It stays in the book after it failed while some rank may not have got it yet, for the places
    that wait to know. A cast has no future and waits for the news that it was delivered.
    """

    __slots__ = ("finish", "future", "mesh", "over", "places", "slots", "values")

    def __init__(
        self,
        mesh: int,
        ranks: Sequence[int],
        places: Mapping[int, Place],
        future: Future[Any] | None,
        finish: Callable[..., Any],
    ) -> None:
        self.mesh = mesh
        self.slots = {rank: index for index, rank in enumerate(ranks)}
        self.places = places
        self.values: list[Any] = [None] * len(ranks)
        self.future = future
        self.finish = finish
        self.over = future is None

    def take(self, ranks: Iterable[int]) -> list[int]:
        """Cross these ranks off; returns the indices of those that had not answered."""
        indices = []
        for rank in ranks:
            index = self.slots.pop(rank, None)
            if index is not None:
                indices.append(index)
                if self.places and (place := self.places.get(rank)) is not None:
                    place.arrive()
        return indices


class CallBook:
    """Open calls by id. Safe to use from any thread.

    Args:
        lock: guards the places as well.
        driver: of the loop by which answers come, if those who wait run it.
    """

    def __init__(self, lock: threading.RLock | None = None, driver: Driver | None = None) -> None:
        self._driver = driver
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._lock = lock or threading.RLock()  # a signal handler may call while we are at it

    def open(
        self,
        mesh: int,
        ranks: Sequence[int],
        finish: Callable[[list[Any]], Any],
        what: str,
        places: Mapping[int, Place] | None = None,
    ) -> tuple[int, Future[Any]]:
        """Note a call before it is sent.

        Args:
            finish: makes the future's value of the list of answers, ordered as ``ranks``.
            places: of ranks whose place is told when the call is known to have arrived.

        Returns:
            the call's id and its future.
        """
        future: Future[Any] = Future(what, self._driver)
        call = next(self._ids)
        with self._lock:
            self._open[call] = _Open(mesh, ranks, places or {}, future, finish)
        return call, future

    def open_cast(self, mesh: int, places: Mapping[int, Place]) -> int:
        """Note a cast, to tell these places when it is known to have arrived; returns its id."""
        call = next(self._ids)
        with self._lock:
            self._open[call] = _Open(mesh, list(places), places, None, list)
        return call

    def answer(self, frame: Frame) -> None:
        """Take a RESULT or ERROR frame. Answers to calls that are no longer open are ignored."""
        value, error = answer_of(frame)
        if error is not None:
            self.fail(frame.call, error, frame.ranks)
        else:
            self.answer_ranks(frame.call, frame.ranks, value)

    def answer_ranks(self, call_id: int, ranks: Iterable[int], value: Any) -> None:
        """Note what these ranks answered to a call, or have got a cast; the last one settles it."""
        with self._lock:
            call = self._open.get(call_id)
            if call is None:
                return
            for index in call.take(ranks):
                if not call.over:
                    call.values[index] = value
            if call.slots:
                return
            del self._open[call_id]
            if call.over or call.future is None:
                return
        try:
            result = call.finish(call.values)  # may run code of the user's classes
        except BaseException as error:
            call.future.set_exception(not_loaded(error))
        else:
            call.future.set_result(result)

    def fail(self, call_id: int, error: BaseException, ranks: Iterable[int] = ()) -> None:
        """End a call with an error, which came from these ranks."""
        with self._lock:
            call = self._open.get(call_id)
            if call is None:
                return
            call.take(ranks)
            if not call.slots or not call.places:
                del self._open[call_id]
            if call.over or call.future is None:
                return
            call.over = True
            call.values = []
        call.future.set_exception(error)

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

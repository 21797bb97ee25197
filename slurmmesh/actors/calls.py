"""The caller's book of open calls: who still owes an answer, and what to do with each answer."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from slurmmesh.actors.future import Future
from slurmmesh.actors.messages import Failure
from slurmmesh.wire.codec import loads
from slurmmesh.wire.frames import Frame, Kind


class _Open:
    """One open call: a value per rank, in the order of the ranks called."""

    __slots__ = ("finish", "future", "mesh", "slots", "values")

    def __init__(
        self, mesh: int, ranks: Sequence[int], future: Future[Any], finish: Callable[..., Any]
    ) -> None:
        self.mesh = mesh
        self.slots = {rank: index for index, rank in enumerate(ranks)}
        self.values: list[Any] = [None] * len(ranks)
        self.future = future
        self.finish = finish


class CallBook:
    """Open calls by id. Safe to use from any thread."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)
        self._open: dict[int, _Open] = {}
        self._lock = threading.RLock()  # a signal handler may call while we are at it

    def open(
        self, mesh: int, ranks: Sequence[int], finish: Callable[[list[Any]], Any], what: str
    ) -> tuple[int, Future[Any]]:
        """Note a call before it is sent.

        Args:
            finish: makes the future's value of the list of answers, ordered as ``ranks``.

        Returns:
            the call's id and its future.
        """
        future: Future[Any] = Future(what)
        call = next(self._ids)
        with self._lock:
            self._open[call] = _Open(mesh, ranks, future, finish)
        return call, future

    def answer(self, frame: Frame) -> None:
        """Take a RESULT or ERROR frame. Answers to calls that are no longer open are ignored."""
        # Loading and finishing run code of the user's classes, which may raise anything.
        try:
            value = loads(frame.body, frame.buffers)
            if frame.kind is Kind.ERROR:
                value = value.rebuild() if isinstance(value, Failure) else value
        except BaseException as error:
            self.fail(frame.call, _not_loaded(error))
            return
        if frame.kind is Kind.ERROR:
            self.fail(frame.call, value)
            return
        with self._lock:
            call = self._open.get(frame.call)
            if call is None:
                return
            for rank in frame.ranks:
                index = call.slots.pop(rank, None)
                if index is not None:
                    call.values[index] = value
            if call.slots:
                return
            del self._open[frame.call]
        try:
            result = call.finish(call.values)
        except BaseException as error:
            call.future.set_exception(_not_loaded(error))
        else:
            call.future.set_result(result)

    def fail(self, call_id: int, error: BaseException) -> None:
        """End a call with an error."""
        with self._lock:
            call = self._open.pop(call_id, None)
        if call is not None:
            call.future.set_exception(error)

    def fail_ranks(self, mesh: int, ranks: Iterable[int], error: BaseException) -> None:
        """End every call that waits for one of these ranks: their processes are gone."""
        gone = set(ranks)
        with self._lock:
            hit = [
                call_id
                for call_id, call in self._open.items()
                if call.mesh == mesh and not gone.isdisjoint(call.slots)
            ]
        for call_id in hit:
            self.fail(call_id, error)

    def fail_mesh(self, mesh: int, error: BaseException) -> None:
        """End every call to a mesh."""
        with self._lock:
            hit = [call_id for call_id, call in self._open.items() if call.mesh == mesh]
        for call_id in hit:
            self.fail(call_id, error)


def _not_loaded(error: BaseException) -> Exception:
    """An answer that came but cannot be used here; only an Exception may reach the caller."""
    if isinstance(error, Exception):
        return error
    return RuntimeError(f"an answer cannot be loaded: {type(error).__name__}: {error}")

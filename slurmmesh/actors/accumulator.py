"""One value of the results of all ranks."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from slurmmesh.actors.endpoints import EndpointRef
from slurmmesh.actors.future import Future

A = TypeVar("A")


class Accumulator(Generic[A]):
    """Folds the results of an endpoint, as they come, into one value.

    ``Accumulator(counters.value, 0, operator.add).accumulate().get()`` is the sum over all ranks.

    Args:
        endpoint: of an actor mesh: ``counters.value``.
        identity: the value before the first result.
        combine: makes of the value so far and a result the next value. Runs where results come
            in: it should be quick and must not wait for other futures.
    """

    def __init__(self, endpoint: EndpointRef, identity: A, combine: Callable[[A, Any], A]) -> None:
        if not isinstance(endpoint, EndpointRef):
            raise TypeError(f"an Accumulator takes an endpoint of a mesh, not {endpoint!r}")
        self._endpoint = endpoint
        self._identity = identity
        self._combine = combine

    def accumulate(self, *args: Any, **kwargs: Any) -> Future[A]:
        """Call the endpoint on every rank; the future has the value, or the first error."""
        return _Fold(self._endpoint.stream(*args, **kwargs), self._identity, self._combine).future


class _Fold(Generic[A]):
    def __init__(
        self, results: Iterator[Future[Any]], value: A, combine: Callable[[A, Any], A]
    ) -> None:
        waiting = list(results)
        self._value = value
        self._combine = combine
        self._left = len(waiting)
        self._lock = threading.RLock()  # results may come by several loops
        last = waiting[-1]
        self.future: Future[A] = Future(last._what, last._driver, last.asked)
        for result in waiting:
            result.add_waker(functools.partial(self._take, result))

    def _take(self, result: Future[Any]) -> None:
        with self._lock:
            if self.future.done():
                return
            try:
                self._value = self._combine(self._value, result.get())
            except Exception as error:
                self.future.set_exception(error)
                return
            self._left -= 1
            is_last = not self._left
        if is_last:
            self.future.set_result(self._value)

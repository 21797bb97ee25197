"""The result of a call that may not be there yet."""

from __future__ import annotations

import asyncio
import math
import threading
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from slurmmesh.errors import CallTimeout
from slurmmesh.wire.reactor import in_loop_thread, print_error

T = TypeVar("T")
_PENDING = object()


class Future(Generic[T]):
    """A value to come. May be asked by several threads and awaited, any number of times.

    A timeout does not spoil it: ask again.
    """

    def __init__(self, what: str = "the call") -> None:
        self._what = what
        self._lock = threading.RLock()  # a signal handler may ask while we are at it
        self._ready: threading.Event | None = None
        self._value: Any = _PENDING
        self._error: BaseException | None = None
        self._callbacks: list[Callable[[Future[T]], Any]] = []

    def done(self) -> bool:
        """Whether the result or the error is there."""
        return self._value is not _PENDING or self._error is not None

    def get(self, timeout: float | None = None) -> T:
        """Wait for the result, at most ``timeout`` seconds, and return it.

        Raises:
            CallTimeout: it did not come in time.
            ActorError: the endpoint raised.
            SupervisionError: whoever owed the answer is gone.
            RuntimeError: asked by an event callback, in the thread that takes the answers.
        """
        self._wait(timeout)
        if self._error is not None:
            # Traceback and context of an earlier raise do not belong to this one.
            self._error.__context__ = None
            raise self._error.with_traceback(None)
        return self._value

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait and return the error, or None if there is none. A timeout is returned as well."""
        try:
            self._wait(timeout)
        except CallTimeout as error:
            return error
        return self._error

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call ``callback(self)`` once done: at once if it is, else in the thread that finds out.

        It must be short and must not wait for other futures.
        """
        with self._lock:
            if not self.done():
                self._callbacks.append(callback)
                return
        callback(self)

    def set_result(self, value: T) -> None:
        """Fulfil it; later results and errors are ignored."""
        self._settle(value, None)

    def set_exception(self, error: BaseException) -> None:
        """Fail it; later results and errors are ignored."""
        self._settle(_PENDING, error)

    def __await__(self) -> Generator[Any, None, T]:
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not waiter.done():
                waiter.set_result(None)

        def done(_: Future[T]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(wake)

        self.add_done_callback(done)
        yield from waiter
        return self.get()

    def _settle(self, value: Any, error: BaseException | None) -> None:
        with self._lock:
            if self.done():
                return
            self._value, self._error = value, error
            callbacks, self._callbacks = self._callbacks, []
            if self._ready is not None:
                self._ready.set()
        for callback in callbacks:
            try:
                callback(self)
            except Exception:  # neither the other callbacks nor the settling thread suffer from it
                print_error()

    def _wait(self, timeout: float | None) -> None:
        if timeout is not None and (math.isnan(timeout) or timeout < 0):
            raise ValueError(f"a timeout is a number of seconds of at least 0, not {timeout}")
        with self._lock:
            if self.done():
                return
            if self._ready is None:
                self._ready = threading.Event()
            ready = self._ready
        if in_loop_thread():
            raise RuntimeError(
                f"{self._what}: a callback of an event waits here for the thread it runs in: put "
                "the event in a queue and wait elsewhere"
            )
        if not ready.wait(timeout):
            raise CallTimeout(f"{self._what} gave no answer within {timeout} s")

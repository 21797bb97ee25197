"""The result of a call that may not be there yet."""

from __future__ import annotations

import contextlib
import functools
import itertools
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from slurmmesh.actors.hearing import hear
from slurmmesh.errors import CallTimeout, SupervisionError
from slurmmesh.wire.driver import Bell, Driver
from slurmmesh.wire.reactor import in_loop_thread, print_error

if TYPE_CHECKING:
    import asyncio

    from slurmmesh.actors.waits import Asked

T = TypeVar("T")
_PENDING = object()
# Of all futures, held for a few steps only. Reentrant: a signal handler may ask meanwhile.
_lock = threading.RLock()
_process = os.getpid()


def _after_fork_in_child() -> None:
    """What is under way is the parent's; its threads may have held the lock."""
    global _lock, _process
    _lock = threading.RLock()
    _process = os.getpid()


os.register_at_fork(after_in_child=_after_fork_in_child)


class Future(Generic[T]):
    """A value to come. May be asked by several threads and awaited, any number of times.

    A timeout does not spoil it: ask again.

    Args:
        what: it is the answer to; for the text of errors.
        driver: of the loop that its answer comes by; who waits runs it. None: another thread does.
        asked: the call that it is the answer to, if an actor made it.
    """

    __slots__ = ("__weakref__", "_driver", "_error", "_pid", "_value", "_wakers", "_what", "asked")

    def __init__(
        self, what: str = "the call", driver: Driver | None = None, asked: Asked | None = None
    ) -> None:
        self._what = what
        self.asked = asked
        self._pid = _process
        self._driver = driver
        self._value: Any = _PENDING
        self._error: BaseException | None = None
        self._wakers: list[Callable[[], Any]] | None = None

    def __repr__(self) -> str:
        if not self.done():
            state = "not there yet"
        else:
            state = repr(self._value) if self._error is None else repr(self._error)
        return f"<{type(self).__name__} of {self._what}: {state}>"

    def done(self) -> bool:
        """Whether the result or the error is there."""
        return self._value is not _PENDING or self._error is not None

    def get(self, timeout: float | None = None) -> T:
        """Wait for the result, at most ``timeout`` seconds, and return it.

        Raises:
            CallTimeout: it did not come in time.
            CallCycle: it cannot come, because who owes it waits for the actor that asks.
            ActorError: the endpoint raised.
            SupervisionError: whoever owed the answer is gone.
            RuntimeError: asked by an event callback, in the thread that takes the answers.
            ValueError: ``timeout`` is negative or no number.
        """
        if timeout is not None or self._value is _PENDING:
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

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is done, at most so many seconds; whether it is. For the runtime itself:
        it does not mind to stop a running event loop for a short time."""
        return self.done() or self._wait_here(timeout)

    def peek(self) -> BaseException | None:
        """The error it has, or None. For callbacks that pass it on to who has asked."""
        return self._error

    def add_done_callback(self, callback: Callable[[Future[T]], Any]) -> None:
        """Call ``callback(self)`` once done: at once if it is, else in the thread that finds out.

        It must be short and must not wait for other futures.
        """
        self.add_waker(functools.partial(callback, self))

    def add_waker(self, wake: Callable[[], Any]) -> None:
        """Call ``wake()`` once done, as a callback."""
        with _lock:
            if not self.done():
                if self._wakers is None:
                    self._wakers = [wake]
                else:
                    self._wakers.append(wake)
                return
        wake()

    def remove_waker(self, wake: Callable[[], Any]) -> None:
        """Take ``add_waker`` back; no matter if it was called."""
        with _lock, contextlib.suppress(ValueError):
            if self._wakers is not None:
                self._wakers.remove(wake)

    def set_result(self, value: T) -> None:
        """Fulfil it; later results and errors are ignored, but wake who is not woken.

        A signal handler may have raised in between, and then the same comes again.
        """
        with _lock:
            if self._error is None and self._value is _PENDING:
                self._value = value
        if self._driver is not None:
            self._driver.poke()
        if self._wakers:
            _call_all(self._wakers)

    def set_exception(self, error: BaseException) -> None:
        """Fail it; later results and errors are ignored, as by ``set_result``."""
        with _lock:
            is_new = self._error is None and self._value is _PENDING
            if is_new:
                self._error = error
        if is_new and isinstance(error, SupervisionError):
            self._tell_of(error)
        if self._driver is not None:
            self._driver.poke()
        if self._wakers:
            _call_all(self._wakers)

    def _tell_of(self, error: SupervisionError) -> None:
        hear(error, error.about)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            from slurmmesh.actors.awaiting import until_done

            suspended = until_done(self, self._driver)
            if self.asked is not None:
                suspended = self.asked.waits.suspended(self, self.asked, suspended)
            yield from suspended
        return self.get()

    def as_asyncio(self) -> asyncio.Future[T]:
        """A future of the running event loop that is done when this one is."""
        from asyncio import ensure_future

        return ensure_future(self)

    def _wait(self, timeout: float | None) -> None:
        if timeout is not None and not timeout >= 0:
            raise ValueError(f"a timeout is a number of seconds of at least 0, not {timeout}")
        if self.done():
            return
        if self._pid != _process:
            raise SupervisionError(
                f"{self._what}: this process is a fork of pid {self._pid}, which has the answer; "
                "wait there"
            )
        if in_loop_thread() and not (self._driver is not None and self._driver.leads_here):
            raise RuntimeError(
                f"{self._what}: a callback of an event waits here for the thread it runs in: put "
                "the event in a queue and wait elsewhere"
            )
        _warn_in_running_loop(self._what)
        if timeout is not None and math.isinf(timeout):
            timeout = None
        asked = self.asked
        if asked is not None and asked.waits.are_here:
            done = asked.waits.wait(self, asked, timeout)
        else:
            done = self._wait_here(timeout)
        if not done:
            raise CallTimeout(f"{self._what} gave no answer within {timeout} s")

    def _wait_here(self, timeout: float | None) -> bool:
        if self._driver is not None:
            return self._driver.wait(self, timeout)
        bell = Bell()
        self.add_waker(bell.ring)
        deadline = None if timeout is None else time.monotonic() + timeout
        left: float | None = None
        try:
            while not self.done():
                if deadline is not None and (left := deadline - time.monotonic()) <= 0:
                    break
                bell.wait(left)
        finally:
            self.remove_waker(bell.ring)
        return self.done()


def all_done(futures: Iterable[Future[Any]], what: str) -> Future[None]:
    """Done when all these are, whatever became of them."""
    waiting = list(futures)
    done: Future[None] = Future(what)
    if not waiting:
        done.set_result(None)
    missing = itertools.count(len(waiting) - 1, -1)  # counts in single steps
    for future in waiting:
        future.add_waker(lambda: None if next(missing) else done.set_result(None))
    return done


def _call_all(wakers: list[Callable[[], Any]]) -> None:
    while wakers:
        try:
            wake = wakers.pop(0)
        except IndexError:  # another thread calls them, too
            return
        try:
            wake()
        except Exception:  # neither the other callbacks nor the settling thread suffer from it
            print_error()
        except BaseException:  # a signal handler's
            _call_all(wakers)
            raise


def _warn_in_running_loop(what: str) -> None:
    events = sys.modules.get("asyncio.events")
    if events is not None and events._get_running_loop() is not None:
        warnings.warn(
            f"{what}: get() in a running event loop stops the loop until the answer is there; "
            "await the future instead",
            RuntimeWarning,
            stacklevel=4,
        )

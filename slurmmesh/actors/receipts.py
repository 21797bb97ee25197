"""Who gets which message: futures in the order they were asked for, while somebody wants them."""

from __future__ import annotations

import itertools
import threading
import weakref
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from slurmmesh.actors.future import Future
from slurmmesh.errors import CallTimeout, UsageError
from slurmmesh.wire.driver import Driver


@dataclass(frozen=True)
class Arrival:
    """What arrived at a port. ``value`` is the error to raise if ``failed``."""

    value: Any
    rank: int | None
    failed: bool


class Receipts:
    """Messages that nobody has read, and the futures that wait for one. For any thread.

    A future is wanted from the moment it was asked for until a wait for it fails (a timeout, a
    cancelled task) or it is dropped, and again while somebody waits for it.

    Args:
        once: one message only.
        value: makes a future's result of a message.
    """

    def __init__(self, once: bool, value: Callable[[Arrival], Any]) -> None:
        self._once = once
        self._value = value
        self._lock = threading.RLock()  # a future may be dropped while this thread is at it
        self._unread: deque[Arrival] = deque()
        self._waiting: dict[int, weakref.ref[Receipt]] = {}  # oldest first
        self._wanted: set[Receipt] = set()  # nobody else may have one with a callback
        self._numbers = itertools.count()
        self._spent = False

    def next(self, driver: Driver | None) -> Receipt:
        """A future of the next message that no older one takes.

        Args:
            driver: of the loop that messages come by.
        """
        with self._lock:
            if self._once and (self._spent or self._waiting):
                raise UsageError("a port opened with once=True gives one message, to one recv()")
            receipt = Receipt(self, next(self._numbers), driver)
            self._waiting[receipt.number] = weakref.ref(receipt)
        self._match()
        return receipt

    def put(self, message: Arrival) -> None:
        """Take a message that arrived."""
        with self._lock:
            self._unread.append(message)
        self._match()

    def want(self, receipt: Receipt) -> None:
        """Somebody begins to wait for it."""
        with self._lock:
            receipt.wanted_by += 1
            if receipt.message is not None:
                return
            self._wanted.add(receipt)
            if receipt.number in self._waiting:
                return
            self._waiting[receipt.number] = weakref.ref(receipt)
            self._waiting = {number: self._waiting[number] for number in sorted(self._waiting)}
        self._match()

    def leave(self, receipt: Receipt) -> bool:
        """Somebody no longer waits for it; false if it has its message by now."""
        with self._lock:
            receipt.wanted_by -= 1
            if receipt.message is not None:
                return False
            if receipt.wanted_by == 0:
                self._wanted.discard(receipt)
                self._waiting.pop(receipt.number, None)
            return True

    def drop(self, receipt: Receipt) -> None:
        """Nobody has it any more: a message that was not read goes to the next."""
        with self._lock:
            self._waiting.pop(receipt.number, None)
            if receipt.message is None or receipt.was_read:
                return
            self._unread.appendleft(receipt.message)
            self._spent = False
        self._match()

    def _match(self) -> None:
        """Give messages to the futures that wait, oldest to oldest."""
        while True:
            with self._lock:
                if not self._unread or not self._waiting:
                    return
                receipt = self._waiting.pop(next(iter(self._waiting)))()
                if receipt is None:
                    continue
                self._wanted.discard(receipt)
                message = receipt.message = self._unread.popleft()
                self._spent = True
            # Not under the lock: it wakes whoever waits, and runs callbacks.
            if message.failed:
                receipt.set_exception(message.value)
            else:
                receipt.set_result(self._value(message))


class Receipt(Future[Any]):
    """A future of one message of a port."""

    def __init__(self, receipts: Receipts, number: int, driver: Driver | None) -> None:
        super().__init__("the port", driver)
        self.number = number
        self.message: Arrival | None = None
        self.was_read = False
        self.wanted_by = 0
        self._receipts = receipts

    def get(self, timeout: float | None = None) -> Any:
        """See ``Future.get``."""
        self._read(timeout)
        return super().get()

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``Future.exception``."""
        try:
            self._read(timeout)
        except CallTimeout as error:
            return error
        return super().exception()

    def add_done_callback(self, callback: Callable[[Future[Any]], Any]) -> None:
        """See ``Future.add_done_callback``; a callback is somebody who waits."""
        self._receipts.want(self)
        super().add_done_callback(callback)

    def __await__(self) -> Generator[Any, None, Any]:
        self._receipts.want(self)
        try:
            return (yield from super().__await__())
        except BaseException:  # it was cancelled, or the message is an error
            self._receipts.leave(self)
            raise

    def _read(self, timeout: float | None) -> None:
        self._receipts.want(self)
        try:
            self._wait(timeout)
        except CallTimeout:
            if self._receipts.leave(self):
                raise
            self._wait(None)  # its message came in this very moment
        except BaseException:
            self._receipts.leave(self)
            raise
        self.was_read = True

    def __del__(self) -> None:
        self._receipts.drop(self)

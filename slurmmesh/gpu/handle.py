"""A communicator of the library: used by many threads, and freed by one of them at any time."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

from slurmmesh.errors import GpuError
from slurmmesh.gpu.library import Library

PATIENCE_S = 1.0
"""How long an abort waits for threads that are in a call, before it frees the communicator."""


class Ended(Exception):
    """The communicator was given back: no call may be made with it."""


class Handle:
    """The library's communicator, which no call has in hand once it is freed.

    Calls are made within ``using``; ``end`` lets no new ones in, waits for those that are in, and
    then frees it. Calls on a communicator that does not block return at once, so that is a matter
    of microseconds. Those of a library that can only block may hang: then, after ``PATIENCE_S``,
    it is freed all the same. That ends them, and is the one thing the library allows meanwhile.
    A signal handler that ends it may have come amid a call of its own thread: then that call frees
    it once it is over.

    Attributes:
        pointer: where the library puts the communicator; it may write there until it is ready.
    """

    def __init__(self, library: Library) -> None:
        self._library = library
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._users: list[int] = []  # threads, once for each call
        self._ended = False
        self._left_to_users = ""  # how the last of them frees it; empty: it does not
        self._freed = threading.Event()
        self.pointer: Any = library.ffi.new("uint64_t *")

    @property
    def made(self) -> bool:
        """There is a communicator, or was one."""
        return self._ended or bool(self.pointer[0])

    @contextlib.contextmanager
    def using(self) -> Iterator[int]:
        """The communicator for a call; 0 while it is being made.

        Raises:
            Ended: it was freed, or is about to be.
        """
        me = threading.get_ident()
        with self._changed:
            self._users.append(me)
        try:
            if self._ended:  # asked only now: a signal handler may end it at any point before
                raise Ended
            yield int(self.pointer[0])
        finally:
            with self._changed:
                self._users.remove(me)
                how = "" if self._users else self._left_to_users
                self._changed.notify_all()
            if how:
                with contextlib.suppress(GpuError):  # nobody asked for it here
                    self._free_for_good(how)

    def make(self, call: Callable[[Any], None]) -> None:
        """Have the library make it; by a call that may take for ever.

        If it was given up meanwhile, it is freed at once.

        Raises:
            Ended: that was so.
        """
        with self.using():
            call(self.pointer)
        if self._ended:
            self._free("sm_ccl_abort")
            raise Ended

    def end(self, how: str = "sm_ccl_abort") -> None:
        """Free it: ``sm_ccl_abort``, or ``sm_ccl_destroy``. A second time waits for the first.

        Raises:
            GpuError: the library refused; it is not to be used again all the same.
        """
        if os.getpid() != self._pid:
            return  # a forked child; a thread of the parent may hold the lock for ever
        with self._changed:
            first, self._ended = not self._ended, True
            if threading.get_ident() in self._users:
                self._left_to_users = how if first else self._left_to_users
                return
            if first:
                self._changed.wait_for(lambda: not self._users, PATIENCE_S)
        if first:
            self._free_for_good(how)
        else:
            self._freed.wait(PATIENCE_S)

    def wait_freed(self) -> None:
        """Once another thread ends it: until that is done, or for a while."""
        self._freed.wait(PATIENCE_S)

    def _free_for_good(self, how: str) -> None:
        try:
            self._free(how)
        finally:
            self._freed.set()

    def _free(self, how: str) -> None:
        with self._changed:  # one of two threads may come first
            number, self.pointer[0] = int(self.pointer[0]), 0
        if number:
            self._library.call(how, number)


class Answer:
    """What becomes of a call."""

    def __init__(self) -> None:
        self._there = threading.Event()
        self._error: BaseException | None = None

    def run(self, call: Callable[[], None]) -> None:
        """Make the call."""
        try:
            call()
        except BaseException as error:
            self._error = error
        self._there.set()

    def there(self) -> bool:
        """It has returned."""
        return self._there.is_set()

    def check(self) -> None:
        """Raises what it raised."""
        if self._error is not None:
            raise self._error


class Lane:
    """Makes calls in the thread that asks: for a library whose calls return at once."""

    def start(self, call: Callable[[], None]) -> Answer:
        """Make a call, or have it made."""
        answer = Answer()
        answer.run(call)
        return answer

    def close(self) -> None:
        """No more calls."""


class SlowLane(Lane):
    """Makes calls in a thread of its own, in order: for a library whose calls may hang.

    One that hangs for good keeps its thread for the rest of the process.
    """

    def __init__(self, name: str) -> None:
        self._calls: _Orders = queue.SimpleQueue()
        threading.Thread(target=_serve, args=(self._calls,), name=name, daemon=True).start()

    def start(self, call: Callable[[], None]) -> Answer:
        answer = Answer()
        self._calls.put((call, answer))
        return answer

    def close(self) -> None:
        self._calls.put(None)


_Orders = queue.SimpleQueue["tuple[Callable[[], None], Answer] | None"]


def _serve(calls: _Orders) -> None:
    while (order := calls.get()) is not None:
        call, answer = order
        answer.run(call)
        del order, call, answer

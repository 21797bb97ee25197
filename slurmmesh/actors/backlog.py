"""How many bytes were sent and have not arrived yet: who sends waits while they are too many.

What goes by the hosts to a rank of a mesh has arrived when its proc has read it, and, as what goes
over a direct link, a second time, at its actor, when that has begun to handle it. Messages for
ports have arrived when their process has read them. Now and then a marker follows a message on the
same way: what was sent before has arrived when the marker has.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Mapping, Sequence

from slurmmesh.actors.context import context
from slurmmesh.actors.future import Future
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import PORTS, STREAM, URGENT, Frame, Kind
from slurmmesh.wire.links import HIGH_WATER

MAILBOX = 64 << 20
"""Bytes that an actor was sent on one way and has not begun to handle: who sends waits."""
TAKEN = "__taken__"
"""A call to an endpoint of this name is answered when the actor comes to it."""
_TAKEN = dumps((TAKEN, (), {}, None))[0]
_NOTHING = dumps(None)[0]
_FRAME = 256
"""About so many bytes a frame takes besides its content, where it is queued."""
_LOOK_S = 0.1
"""So often an actor that waits for room looks whether anybody waits for it."""
_MANY = 64
"""From so many actors of a mesh on, those to which nothing is under way are forgotten."""


class Backlog:
    """What is under way to some, each named by a number. From any thread.

    Args:
        driver: of the loop by which the news of arrivals comes, if those who wait run it.
        most: bytes from which on a sender waits.
    """

    def __init__(self, driver: Driver | None, most: int) -> None:
        self._driver = driver
        self._most = most
        self._lock = threading.RLock()
        self._marked: dict[int, int] = {}
        self._waiting: list[tuple[Sequence[int], Future[None]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing that is marked is under way."""
        return not (self._marked or self._waiting)

    def wait(self, to: Sequence[int], timeout: float | None = None) -> bool:
        """Wait until less than ``most`` is marked and under way to each of these.

        At most ``timeout`` seconds; whether it is.
        """
        room: Future[None] = Future("room", self._driver)
        entry = to, room
        with self._lock:
            if not self._is_full(to):
                return True
            self._waiting.append(entry)
        try:
            return room.wait(timeout)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._waiting.remove(entry)

    def mark(self, sizes: Mapping[int, int]) -> None:
        """A marker for so many bytes is about to be sent."""
        with self._lock:
            for to, size in sizes.items():
                self._marked[to] = self._marked.get(to, 0) + size

    def arrived(self, sizes: dict[int, int], to: Iterable[int]) -> None:
        """Such a marker has arrived at some of those it went to, or never will.

        It may be told twice, where a signal handler raised: what is told is taken from ``sizes``.
        """
        with self._lock:
            for each in to:
                left = self._marked.get(each, 0) - sizes.get(each, 0)
                if left > 0:
                    self._marked[each] = left
                else:
                    self._marked.pop(each, None)
                sizes.pop(each, None)
            released = [room for those, room in self._waiting if not self._is_full(those)]
        for room in released:  # who waits takes it from the list
            room.set_result(None)

    def _is_full(self, to: Sequence[int]) -> bool:
        return any(self._marked.get(each, 0) >= self._most for each in to)


class Counted(Backlog):
    """A backlog that tells after which messages a marker should follow.

    Numbers may be a little off where several threads send.
    """

    def __init__(self, driver: Driver | None, most: int) -> None:
        super().__init__(driver, most)
        self._unmarked: dict[int, int] = {}

    def count(self, frame: Frame) -> dict[int, int]:
        """Count a message that is about to be sent to each of its ranks.

        Returns, if a marker should follow it, the bytes that this one stands for, by rank.
        """
        size = size_of(frame)
        with self._lock:
            unmarked, most = self._unmarked, 0
            for rank in frame.ranks:
                unmarked[rank] = waiting = unmarked.get(rank, 0) + size
                if waiting > most:
                    most = waiting
            if most < self._most // 8:
                return {}
            return {rank: unmarked.pop(rank) for rank in frame.ranks}

    def count_one(self, actor: int, size: int) -> int:
        """The same of so many bytes for one actor; 0 if no marker should follow."""
        waiting = self._unmarked[actor] = self._unmarked.get(actor, 0) + size
        if waiting < self._most // 8:
            return 0
        return self._unmarked.pop(actor, 0)


class Mailboxes(Counted):
    """What actors have been sent and have not begun to handle."""

    def __init__(self, driver: Driver | None) -> None:
        super().__init__(driver, MAILBOX)

    def wait(self, to: Sequence[int], timeout: float | None = None) -> bool:
        """The same. But an actor waits only while nobody is known to wait for itself.

        Two that send to each other, and are busy with that, would stand still otherwise.
        """
        waits = context().waits
        if waits is None or not waits.are_here:
            return super().wait(to, timeout)
        end = None if timeout is None else time.monotonic() + timeout
        while not waits.are_waited_for:
            look = _LOOK_S if end is None else min(_LOOK_S, end - time.monotonic())
            if look < 0:
                return False
            if super().wait(to, look):
                return True
        return False


class MeshBacklog(Backlog):
    """What goes by the hosts to a mesh; it has arrived when a proc has read it.

    Attributes:
        ports: the same of messages for ports.
    """

    def __init__(self, driver: Driver | None) -> None:
        super().__init__(driver, HIGH_WATER)
        self.ports = Counted(driver, HIGH_WATER)
        self._mailboxes: dict[int, Mailboxes] = {}

    def mailboxes(self, actor: int) -> Mailboxes:
        """Of an actor, by rank."""
        found = self._mailboxes.get(actor)
        if found is None:
            if len(self._mailboxes) >= _MANY:
                kept = {k: each for k, each in self._mailboxes.copy().items() if not each.is_idle}
                self._mailboxes = kept
            found = self._mailboxes.setdefault(actor, Mailboxes(self._driver))
        return found

    @property
    def is_idle(self) -> bool:
        """Whether nothing that is marked is under way, or waits for its actor."""
        inner = (self.ports, *self._mailboxes.copy().values())
        return super().is_idle and all(each.is_idle for each in inner)

    def wait_for(self, frame: Frame, timeout: float | None) -> None:
        """Wait for room for a message, on the way and in the mailboxes of its actors."""
        end = None if timeout is None else time.monotonic() + timeout
        for each in (self, self.mailboxes(frame.actor)):
            each.wait(frame.ranks, None if end is None else max(0.0, end - time.monotonic()))


def size_of(frame: Frame) -> int:
    """About how many bytes a frame takes where it is queued."""
    return _FRAME + len(frame.body) + sum(memoryview(each).nbytes for each in frame.buffers)


def marker(mesh: int, ranks: Sequence[int]) -> Frame:
    """Arrives when procs have read it: a cast to no actor, which no proc is given."""
    return Frame(Kind.CAST, mesh=mesh, ranks=ranks, flags=STREAM)


def is_marker(frame: Frame) -> bool:
    """Whether only the news that procs have read all before it is wanted."""
    return frame.kind is Kind.CAST and not frame.actor


def taken(mesh: int, actor: int, ranks: Sequence[int]) -> Frame:
    """Arrives when an actor comes to it: a call, whose answer is the news."""
    return Frame(Kind.CALL, _TAKEN, mesh=mesh, actor=actor, ranks=ranks, flags=STREAM)


def read(mesh: int, ranks: Sequence[int]) -> Frame:
    """Arrives when a process has read it, behind messages for its ports: a call to no actor.

    A proc answers it with its body; the controller refuses it, which is the same.
    """
    return Frame(Kind.CALL, _NOTHING, mesh=mesh, ranks=ranks, flags=STREAM | PORTS)


def is_counted(frame: Frame) -> bool:
    """Whether a message waits behind others; orders do not."""
    return not frame.flags & URGENT

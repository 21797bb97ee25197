"""How many bytes were sent and have not arrived yet.

That is by the hosts to each rank of a mesh, where they have arrived when its proc has read them; or
over a direct link to each actor, where they have when the actor has begun to handle them.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Mapping, Sequence

from slurmmesh.actors.future import Future
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import STREAM, Frame, Kind
from slurmmesh.wire.links import HIGH_WATER

_MARK_EVERY = HIGH_WATER // 8
_FRAME = 256
"""About so many bytes a frame takes besides its content, where it is queued."""


class Backlog:
    """Keeps a sender from filling the memory of hosts and procs where nobody takes what it sends.

    Now and then a marker follows a message to the same ranks: what went to a rank before has
    arrived when the marker has. From any thread; numbers may be a little off where several send.

    Args:
        driver: of the loop by which the news of arrivals comes, if those who wait run it.
        most: bytes from which on a sender waits; None: ``HIGH_WATER``.
    """

    def __init__(self, driver: Driver | None, most: int | None = None) -> None:
        self._driver = driver
        self._most = most
        self._lock = threading.RLock()
        # For each rank the bytes since its last marker, and those up to it that are under way.
        self._unmarked: dict[int, int] = {}
        self._marked: dict[int, int] = {}
        self._waiting: list[tuple[Sequence[int], Future[None]]] = []

    @property
    def is_idle(self) -> bool:
        """Whether nothing that is marked is under way."""
        return not (self._marked or self._waiting)

    def count(self, frame: Frame) -> dict[int, int]:
        """Count a message that is about to be sent.

        Returns, if a marker should follow it, the bytes that this one stands for, by rank.
        """
        size = size_of(frame)
        with self._lock:
            unmarked, most = self._unmarked, 0
            for rank in frame.ranks:
                unmarked[rank] = waiting = unmarked.get(rank, 0) + size
                if waiting > most:
                    most = waiting
            if most < _MARK_EVERY:
                return {}
            return {rank: unmarked.pop(rank) for rank in frame.ranks}

    def count_one(self, actor: int, size: int) -> int:
        """The same of so many bytes for one actor; 0 if no marker should follow."""
        assert self._most is not None
        waiting = self._unmarked[actor] = self._unmarked.get(actor, 0) + size
        if waiting < self._most // 8:
            return 0
        return self._unmarked.pop(actor, 0)

    def wait(self, ranks: Sequence[int], timeout: float | None = None) -> bool:
        """Wait until less than ``HIGH_WATER`` is marked and under way to each of these ranks.

        At most ``timeout`` seconds; whether it is.
        """
        room: Future[None] = Future("room", self._driver)
        entry = ranks, room
        with self._lock:
            if not self._is_full(ranks):
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
            for rank, size in sizes.items():
                self._marked[rank] = self._marked.get(rank, 0) + size

    def arrived(self, sizes: Mapping[int, int], ranks: Iterable[int]) -> None:
        """Such a marker has arrived at some of its ranks, or never will."""
        with self._lock:
            for rank in ranks:
                left = self._marked.pop(rank) - sizes[rank]
                if left:
                    self._marked[rank] = left
            released = [each for each in self._waiting if not self._is_full(each[0])]
            self._waiting = [each for each in self._waiting if each not in released]
        for _, room in released:
            room.set_result(None)

    def _is_full(self, ranks: Sequence[int]) -> bool:
        most = HIGH_WATER if self._most is None else self._most
        return any(self._marked.get(rank, 0) >= most for rank in ranks)


def size_of(frame: Frame) -> int:
    """About how many bytes a frame takes where it is queued."""
    return _FRAME + len(frame.body) + sum(memoryview(each).nbytes for each in frame.buffers)


def marker(mesh: int, ranks: Sequence[int], call: int) -> Frame:
    """The frame of a marker: a cast to no actor, which the hosts pass on and no proc is given."""
    return Frame(Kind.CAST, call=call, mesh=mesh, ranks=ranks, flags=STREAM)


def is_marker(frame: Frame) -> bool:
    """Whether only the news of its arrival is wanted."""
    return frame.kind is Kind.CAST and not frame.actor

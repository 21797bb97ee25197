"""How many bytes of broadcasts go by the hosts to one mesh and have not arrived yet."""

from __future__ import annotations

import collections
import contextlib

from slurmmesh.actors.future import Future
from slurmmesh.wire.frames import Frame
from slurmmesh.wire.links import HIGH_WATER

_MARK_EVERY = HIGH_WATER // 8
_FRAME = 256
"""About so many bytes a frame takes besides its content, where it is queued."""


class Backlog:
    """Keeps a sender from filling the hosts' memory where a proc does not read.

    Now and then a broadcast is marked: of that one the sender wants to know when all ranks have
    got it. Those before it have arrived by then, too. From any thread; numbers may be a little off
    where several send.
    """

    def __init__(self) -> None:
        self._bytes = 0
        self._marked: collections.deque[tuple[int, Future[None]]] = collections.deque()

    def count(self, frame: Frame) -> bool:
        """Count a broadcast that is about to be sent; whether it should be marked."""
        size = len(frame.body) + sum(memoryview(each).nbytes for each in frame.buffers)
        self._bytes += _FRAME + size
        return self._bytes >= _MARK_EVERY

    def mark(self, arrived: Future[None]) -> None:
        """Mark it: ``arrived`` is done when it has arrived everywhere, or never will."""
        size, self._bytes = self._bytes, 0
        self._marked.append((size, arrived))

    def wait(self) -> None:
        """Wait until what is marked and under way is less than ``HIGH_WATER``."""
        while True:
            under_way = [each for each in list(self._marked) if not each[1].done()]
            if sum(size for size, _ in under_way) < HIGH_WATER:
                break
            under_way[0][1].wait()
        with contextlib.suppress(IndexError):  # another thread drops them as well
            while self._marked[0][1].done():
                self._marked.popleft()

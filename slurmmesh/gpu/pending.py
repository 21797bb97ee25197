"""What a communicator has queued and not yet waited for."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from slurmmesh.gpu.buffers import Buffer
from slurmmesh.gpu.live import Operation

_REMEMBERED = 256  # of each stream, for texts


@dataclass(frozen=True, eq=False)
class Pending:
    """An operation that was queued and, as far as known, has not ended."""

    operation: Operation
    stream: int
    given: Any  # what the caller named the stream by, which may own it
    buffers: tuple[Buffer, ...]  # lent to it for as long as it waits, also if that is interrupted


class Queue:
    """The operations of a communicator that have not ended, in the order of each stream.

    The last of each stream is always there, and so is each that has tensors; of the others, those
    that were queued long ago are forgotten: they end before the last.

    Args:
        lock: of the communicator; one that its thread can take again, for signal handlers.
    """

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._streams: dict[int, deque[Pending]] = {}
        self._closed = False

    def add(self, pending: Pending) -> None:
        """It is queued, or is about to be."""
        with self._lock:
            if self._closed:
                return
            queued = self._streams.setdefault(pending.stream, deque())
            queued.append(pending)
            if len(queued) > _REMEMBERED:
                forgotten = next((one for one in queued if not one.buffers), pending)
                if forgotten is not pending:
                    queued.remove(forgotten)

    def done(self, pending: Pending) -> bool:
        """It has ended, and all before it in its stream; whether nothing is left."""
        with self._lock:
            queued = self._streams.get(pending.stream, deque())
            if pending in queued:
                while queued and queued.popleft() is not pending:
                    pass
            if not queued:
                self._streams.pop(pending.stream, None)
            return not self._streams

    def close(self) -> None:
        """Nothing is waited for any more, and no tensor is kept."""
        with self._lock:
            self._closed = True
            self._streams = {}  # a signal handler may come amid ``done``, which has the old one

    @property
    def oldest(self) -> Pending | None:
        """The one that was queued first; None: there is none."""
        with self._lock:
            first = [queued[0] for queued in tuple(self._streams.values()) if queued]
        return min(first, key=lambda one: one.operation.since, default=None)

    @property
    def lasts(self) -> list[Pending]:
        """The last of each stream."""
        with self._lock:
            return [queued[-1] for queued in tuple(self._streams.values()) if queued]

"""What one link needs to pass payloads through shared memory (``wire/shm.py``), in both directions.

A frame whose flag ``SHARED`` is set has one buffer on the wire, a table of 8-byte numbers that
says where its real buffers lie:

- a number that no other table on this link has; the number of segments; the number of buffers;
- for each segment its id, and its size, with bit 63 set if its descriptor comes with the frame:
  descriptors come in this order, before others;
- for each buffer the index of its segment in this table, its offset and its length;
- ids of segments that the sender no longer has: the peer unmaps them.

A RELEASE frame, with the same flag, goes the other way. It names what a table has passed by two
numbers, that of the table and the id of the segment. Its body is how many of these are not used any
more, these, and those that are lost: nobody knows when they will be free. It may come twice.
"""

from __future__ import annotations

import contextlib
import itertools
import operator
import os
import threading
import weakref
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from slurmmesh.errors import FrameError
from slurmmesh.wire import shm
from slurmmesh.wire.frames import MAX_FDS, SHARED, Buffer, Frame, Kind
from slurmmesh.wire.reactor import Reactor
from slurmmesh.wire.shm import IDLE_S, Grant, Lease, Pool, Segment, lease_of, offset_in

THRESHOLD = 1 << 18
"""Bytes of payload in a frame from which on shared memory is quicker than the socket."""

_ALONE = 1 << 20
"""A buffer of so many bytes has a segment of its own, which is free again when it is."""
_MAX_ALONE = 16
_ALIGNMENT = 64
_NEW = 1 << 63
_first = operator.methodcaller("popleft")


@dataclass(slots=True)
class Placed:
    """What goes over the socket for a frame whose payload is in shared memory.

    Attributes:
        frame: to be sent instead.
        fds: descriptors to go with it, which are the caller's.
        sent: to be called when it is on its way.
    """

    frame: Frame
    fds: tuple[int, ...]
    sent: Callable[[], None]


def share(frame: Frame, pool: Pool) -> list[memoryview] | None:
    """Put the payload of a frame into shared memory; None if it is to go as it is.

    What lies in a segment already is passed on, all else is copied, once: afterwards ``frame`` has
    the copies as its buffers, and all links of this machine pass those on.
    """
    buffers = [memoryview(buffer).cast("B") for buffer in frame.buffers]
    if sum(map(len, buffers)) < THRESHOLD:
        return None
    views = _in_segments(buffers, pool)
    if views is None:
        return None
    if isinstance(frame.buffers, list):
        frame.buffers[:] = views
    else:
        frame.buffers = views
    return views


def _in_segments(buffers: list[memoryview], pool: Pool) -> list[memoryview] | None:
    """The buffers, with what is in no segment that can be passed on copied into some."""
    views = list(buffers)
    alone: list[list[int]] = []
    together: list[int] = []
    for index, buffer in enumerate(buffers):
        lease = lease_of(buffer)
        if lease is not None and lease.segment.fd >= 0:
            continue
        if len(buffer) >= _ALONE and len(alone) < _MAX_ALONE:
            alone.append([index])
        else:
            together.append(index)
    for group in [*alone, together] if together else alone:
        offsets = [0]
        for index in group:
            offsets.append(offsets[-1] + -(-len(buffers[index]) // _ALIGNMENT) * _ALIGNMENT)
        lease = pool.lease(max(1, offsets[-1]))
        if lease is None:
            return None
        segment, whole = lease.segment, lease.segment.view(lease)
        for index, offset in zip(group, offsets, strict=False):
            try:
                segment.write(offset, buffers[index])
            except OSError:  # no memory: what is half written is not kept either
                lease.lost = True
                return None
            views[index] = whole[offset : offset + len(buffers[index])]
    return views


class Sharing:
    """Payloads of one link in shared memory.

    Args:
        reactor: the link's loop.
        post: sends a frame on the link.
        pool: where segments come from.
    """

    def __init__(
        self, reactor: Reactor, post: Callable[[Frame], Any], pool: Pool = shm.pool
    ) -> None:
        self._reactor = reactor
        self._post = post
        self._pool = pool
        self._lock = threading.RLock()
        self._closed = False
        self._numbers = itertools.count(1)
        # By numbers of tables and our ids: what the peer uses. By our ids: what it has; those of
        # segments that are gone here.
        self._lent: dict[tuple[int, int], Lease] = {}
        self._known: dict[int, weakref.ref[Segment]] = {}
        self._gone: deque[int] = deque()
        # By the peer's ids: what we have mapped. What we use no more, or have lost; and of that
        # what the peer is being told.
        self._mapped: dict[int, Segment] = {}
        self._ended: deque[tuple[int, int, bool]] = deque()
        self._telling: list[tuple[int, int, bool]] = []
        # The table that was read last; its buffers until the frame has been handled.
        self._taken: tuple[int, list[memoryview] | None] = (0, None)
        pool.enter(self)

    # -- sending --------------------------------------------------------------------------------

    def place(self, frame: Frame) -> Placed | None:
        """``share`` it, and tell how it goes over the link then; None if it is to go as it is."""
        views = share(frame, self._pool)
        if views is None:
            return None
        leases: dict[int, Lease] = {}
        places: dict[int, int] = {}
        parts = array("Q")
        for view in views:
            lease = lease_of(view)
            assert lease is not None
            segment = lease.segment
            if segment.id not in leases:
                places[segment.id] = len(leases)
                leases[segment.id] = lease
            parts.extend((places[segment.id], offset_in(segment, view), len(view)))
        with self._lock:
            if self._closed:
                return None
            new = [each.segment for each in leases.values() if each.segment.id not in self._known]
            fds = _duplicates(new)
            if fds is None:
                return None
            own = next(self._numbers)
            for number, lease in leases.items():
                self._lent[own, number] = lease
        table = array("Q", (own, len(leases), len(views)))
        for number, lease in leases.items():
            segment = lease.segment
            table.extend((number, segment.size | (_NEW if segment in new else 0)))
        table.extend(parts)
        gone = self._gone_now()
        for number in gone:
            self._known.pop(number, None)
        table.extend(gone)
        sent = replace(frame, buffers=[table.tobytes()], flags=frame.flags | SHARED)
        return Placed(sent, fds, partial(self._passed, new, gone))

    def _gone_now(self) -> list[int]:
        while True:
            with contextlib.suppress(RuntimeError):  # one went this moment
                return list(self._gone)

    def _passed(self, new: list[Segment], gone: list[int]) -> None:
        """These segments are on their way to the peer, as is the news of those that are gone."""
        for number in gone:
            with contextlib.suppress(ValueError):  # told twice does no harm
                self._gone.remove(number)
        for segment in new:
            self._known[segment.id] = weakref.ref(segment, partial(_note, self._gone, segment.id))

    def _released(self, frame: Frame) -> None:
        """The peer uses some segments no more."""
        numbers = _numbers(frame.body)
        if len(numbers) % 2 == 0 or 2 * numbers[0] >= len(numbers):
            raise FrameError("a frame of released segments that has fewer than it says")
        for place, key in enumerate(zip(numbers[1::2], numbers[2::2], strict=True)):
            with self._lock:
                if place >= numbers[0] and (lease := self._lent.get(key)) is not None:
                    lease.lost = True
                    del lease
                self._lent.pop(key, None)
        self._look()

    def _look(self) -> None:
        """Have the pool look at what is idle, now and, while there is something, later."""
        if self._pool.look():
            self._reactor.call_later(IDLE_S, self._look)

    # -- receiving ------------------------------------------------------------------------------

    def receive(self, frame: Frame, handle: Callable[[], Any]) -> None:
        """Take a frame that has the flag SHARED. In the loop's thread.

        Args:
            handle: called if somebody is to handle the frame; it has its buffers then.

        Raises:
            FrameError: it refers to what is not there.
            MemoryError: there is no room for what it refers to.
        """
        if frame.kind is Kind.RELEASE:
            self._released(frame)
        elif self._take(frame):
            handle()
            self._taken = (self._taken[0], None)

    def _take(self, frame: Frame) -> bool:
        """Give a frame its buffers.

        False if it has been handled already: it comes again when a signal handler raised at the
        end of that.
        """
        table = _numbers(frame.buffers[0] if len(frame.buffers) == 1 else b"")
        grant = Grant()
        used, views, gone = self._read(table, frame.fds, grant)
        for each in gone:
            self._mapped.pop(each, None)
        number, flags, rest = table[0], frame.flags & ~SHARED, frame.fds[used:]
        if number == self._taken[0]:
            known = self._taken[1]
            frame.buffers, frame.flags, frame.fds = known or (), flags, rest
            return known is not None
        taken = (number, views)
        # Between these no signal handler is called.
        self._taken, frame.buffers, frame.flags, frame.fds, grant.given = (
            *(taken, views, flags, rest),
            True,
        )
        return True

    def _read(
        self, table: array[int], fds: Sequence[int], grant: Grant
    ) -> tuple[int, list[memoryview], array[int]]:
        """How many descriptors a table is about, its buffers, and which segments are gone."""
        if len(table) < 3 or len(table) < 3 + 2 * table[1] + 3 * table[2]:
            raise FrameError("a frame in shared memory whose table is too short")
        middle = 3 + 2 * table[1]
        end = middle + 3 * table[2]
        used = 0
        wholes: list[memoryview] = []
        for number, size in zip(table[3:middle:2], table[4:middle:2], strict=True):
            segment = self._mapped.get(number)
            if size & _NEW:
                if used == len(fds):
                    raise FrameError("a frame in shared memory without its descriptors")
                if segment is None:
                    segment = self._mapped[number] = Segment.of_peer(fds[used], size & ~_NEW)
                used += 1
            if segment is None:
                raise FrameError(f"a frame in shared memory that was never passed: {number}")
            wholes.append(segment.view(Lease(segment, self._end_of(table[0], number), grant)))
        views = []
        for at in range(middle, end, 3):
            index, offset, length = table[at : at + 3]
            if index >= len(wholes) or offset + length > len(wholes[index]):
                raise FrameError("a frame in shared memory with a buffer beyond its segment")
            views.append(wholes[index][offset : offset + length])
        return used, views, table[end:]

    def _end_of(self, table: int, number: int) -> Callable[[Segment, bool], None]:
        def ended(_segment: Segment, lost: bool) -> None:
            self._ended.append((table, number, lost))
            if not self._closed:
                self._reactor.before_wait(self._release)

        return ended

    def _release(self) -> None:
        """Tell the peer which segments of it are used no more here."""
        if self._closed:
            return
        # In one step of the interpreter; and nothing is dropped before it is sent.
        telling, ended = self._telling, self._ended
        telling.extend(map(_first, itertools.repeat(ended, len(ended))))
        count = len(telling)
        if not count:
            return
        free, lost = array("Q"), array("Q")
        for table, number, is_lost in telling[:count]:
            (lost if is_lost else free).extend((table, number))
        body = (array("Q", (len(free) // 2,)) + free + lost).tobytes()
        self._post(Frame(Kind.RELEASE, body, flags=SHARED))
        if self._telling is telling:  # else a signal handler waited, and told it all
            self._telling = telling[count:]

    def close(self) -> None:
        """The link is closed. What the peer may still use is not used again."""
        self._lose_all()
        self.forget()
        self._pool.leave(self)

    def _lose_all(self) -> None:
        with self._lock:
            self._closed = True
            for lease in self._lent.values():
                lease.lost = True

    def forget(self) -> None:
        """In a forked child: it is the parent's. What has arrived stays."""
        self._lock = threading.RLock()
        self._closed = True
        self._lent.clear()
        self._known.clear()
        self._mapped.clear()
        self._taken = (0, None)


def _duplicates(segments: Sequence[Segment]) -> tuple[int, ...] | None:
    """Their descriptors, to go with a frame; None if there are too many, or no more to be had."""
    fds: list[int] = []
    try:
        if len(segments) <= MAX_FDS:
            fds += (os.dup(segment.fd) for segment in segments)
            return tuple(fds)
    except OSError:
        for fd in fds:
            os.close(fd)
    return None


def _note(numbers: deque[int], number: int, _gone: Any) -> None:
    numbers.append(number)


def _numbers(data: Buffer) -> array[int]:
    numbers = array("Q")
    try:
        numbers.frombytes(data)
    except ValueError:
        raise FrameError(f"{len(data)} bytes are no table of numbers") from None
    return numbers

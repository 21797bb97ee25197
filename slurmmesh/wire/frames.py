"""Frames: what travels on a link. Pure: bytes in, frames out, no sockets.

A frame is a fixed header, the ranks it is for, the lengths of its buffers, a body and the buffers
themselves. The header holds all that a relay needs: hosts forward frames unread.

======== ===== =======================================================
field    bytes meaning
======== ===== =======================================================
magic        2 ``SM``
version      1 of this layout
kind         1 one of :class:`Kind`
flags        2 bits ``STREAM`` to ``SOON``, see below; high byte: descriptors with it
buffers      2 number of out-of-band buffers
ranks        4 number of ranks that follow the header (4 bytes each)
call         8 id of the call this frame belongs to, 0 if none
mesh         4 id of the proc mesh
actor        4 id of the actor within the mesh
body         8 length of the body
======== ===== =======================================================
"""

from __future__ import annotations

import collections
import enum
import itertools
import mmap
import operator
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from slurmmesh.errors import FrameError

MAGIC = b"SM"
VERSION = 2
HEADER = struct.Struct("<2sBBHHIQIIQ")
MAX_BUFFERS = 0xFFFF
MAX_RANKS = 1 << 20
MAX_FDS = 64
MAX_SIZE = 1 << 40
"""Largest body or buffer in bytes: a bound against nonsense, far above any real payload."""
STREAM = 1
"""Flag: answers of several ranks are passed on as they come, not merged."""
ACKED = 2
"""Flag of a request: its sender wants to know when it was delivered to each rank."""
AGAIN = 4
"""Flag of a request: sent by another way already, of which nobody knows how far it came."""
SHARED = 8
"""Flag: its buffers are in shared memory (``wire/sharing.py``). Only links see it."""
URGENT = 16
"""Flag of a request: an order to the actor itself, which it takes before all that waits."""
BROKEN = 32
"""Flag of a request: a direct link of its sender broke; what that has brought comes before it."""
PORTS = 64
"""Flag of a request: it follows messages for ports (``PORT``), on their way."""
SOON = 128
"""Flag: answers of several ranks are merged, but wait for each other only for a moment."""
_LONG_WAY = SHARED | 0xFF00

_SMALL = 1 << 14
"""Below this many missing bytes a copy is cheaper than a receive call of its own."""
_LAZY = 16 << 20
"""From so many bytes on, memory that is made as it is written to is not slower."""

Buffer = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """What a frame is about."""

    HELLO = 1  # up, first: who is here, and when it is ready; of a host, how it fails
    WELCOME = 2  # down, in answer: who the other is, and how to behave
    CONTROL = 3  # a message between controller, hosts and procs (``hosts/messages.py``)
    CREATE = 4  # down: build an actor
    CALL = 5  # a call that wants an answer of each rank
    CAST = 6  # a call that wants none
    RESULT = 7  # the answer of one rank: a value
    ERROR = 8  # the answer of one rank, or of several: a failure
    EVENT = 9  # up: an event for the job's log
    PING = 10  # a sign of life
    PONG = 11  # its answer
    CALLS = 12  # on direct links: calls and casts, several in one frame
    RESULTS = 13  # on direct links: answers, several in one frame
    MERGED = 14  # up: answers of several ranks, see ``wire/gather.py``
    DELIVERED = 15  # up: these ranks have been handed a cast
    ASK = 16  # up: what a proc asks of the controller (``hosts/asks.py``)
    PORT = 17  # a message for a port
    RELEASE = 18  # shared memory that came by this link is free again
    LOG = 19  # up: lines that ranks wrote
    RETURNED = 20  # up: a host below cannot be reached, these ranks must be sent to anew
    CLOSED = 21  # down: the sender knows all answers to these calls
    AFRESH = 22  # down: earlier requests that have not come will come by another way


_pack = HEADER.pack
_unpack = HEADER.unpack_from
_KINDS = {int(kind): kind for kind in Kind}
_LENGTH = struct.Struct("<Q")
_LENGTH_AT = HEADER.size - _LENGTH.size
_HEADS = {
    kind: HEADER.pack(MAGIC, VERSION, kind, 0, 0, 0, 0, 0, 0, 0)[:_LENGTH_AT]
    for kind in (Kind.CALLS, Kind.RESULTS)
}
_BATCHES = {head: kind for kind, head in _HEADS.items()}


def batch_bytes(kind: Kind, body: bytes) -> bytes:
    """The whole frame of a batch, CALLS or RESULTS."""
    return _HEADS[kind] + _LENGTH.pack(len(body)) + body


@dataclass(slots=True)
class Frame:
    """One message. ``ranks`` are global ranks of the proc mesh ``mesh``.

    Attributes:
        flags: any of ``STREAM`` to ``SOON``, or 0.
        fds: of a received frame: the descriptors that came with it. They are the decoder's, which
            closes them when the next frame is asked for.
        is_taken: whether somebody took a descriptor of it.
    """

    kind: Kind
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()
    call: int = 0
    mesh: int = 0
    actor: int = 0
    ranks: Sequence[int] = field(default=())
    flags: int = 0
    fds: Sequence[int] = field(default=(), compare=False)
    is_taken: bool = field(default=False, compare=False)

    def take_socket(self) -> socket.socket:
        """The unix socket that came with it, which is the caller's from here on.

        Afterwards the frame is not handed over again, whatever a signal handler raises.

        Raises FrameError if there is none.
        """
        if not self.fds:
            raise FrameError("a descriptor was to come with this message")
        self.is_taken = True
        # Somebody has the descriptor at any moment.
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        os.dup2(self.fds[0], sock.fileno(), inheritable=False)
        return sock

    def parts(self, fds: int = 0) -> list[Buffer]:
        """The frame as byte strings to send one after the other (payloads are not copied).

        Args:
            fds: how many descriptors go with it.

        Raises:
            FrameError: it has more buffers or ranks, or larger ones, than a frame may have.
        """
        body, ranks = self.body, self.ranks
        if not self.buffers:
            buffers: list[memoryview] = []
        else:
            buffers = [memoryview(buffer).cast("B") for buffer in self.buffers]
        if len(buffers) > MAX_BUFFERS or len(ranks) > MAX_RANKS or fds > MAX_FDS:
            raise FrameError(
                f"{len(buffers)} buffers and {fds} descriptors for {len(ranks)} ranks in one frame"
            )
        head = HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            self.flags | fds << 8,
            len(buffers),
            len(ranks),
            self.call,
            self.mesh,
            self.actor,
            len(body),
        )
        if ranks:
            head += struct.pack(f"<{len(ranks)}I", *ranks)
        if buffers:
            head += struct.pack(f"<{len(buffers)}Q", *map(len, buffers))
        if len(body) <= _SMALL:
            head += body
            return [head, *(buffer for buffer in buffers if len(buffer))]
        return [head, body, *(buffer for buffer in buffers if len(buffer))]


def _memory(size: int) -> bytearray | memoryview:
    """Writable memory of ``size`` bytes. Much of it is the kernel's to give as it is written to:
    a peer that only claims to send much does not cost us that much.

    Raises MemoryError."""
    if size < _LAZY:
        return bytearray(size)
    try:
        return memoryview(mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    except OSError as error:
        raise MemoryError(f"no memory for {size} bytes of a frame: {error}") from None


def answer_bytes(request: Frame, body: bytes) -> bytes:
    """The whole RESULT frame that answers a request; who it comes from is known by its link."""
    call, mesh, actor = request.call, request.mesh, request.actor
    return _pack(MAGIC, VERSION, Kind.RESULT, 0, 0, 0, call, mesh, actor, len(body)) + body


class _Payload:
    """Body and buffers of a frame of which much is missing: memory, filled in place."""

    __slots__ = ("counts", "frame", "segments")

    def __init__(self, frame: Frame, segments: list[bytearray | memoryview]) -> None:
        self.frame = frame
        self.segments = segments
        # Bytes received: those up to some step, and those of each receive call since then.
        self.counts: tuple[int, list[int]] = (0, [])

    def missing(self) -> memoryview | None:
        """What of the first incomplete segment is missing; None if all is there."""
        base, counts = self.counts
        received = base + sum(counts)
        self.counts = (received, [])
        for segment in self.segments:
            if received < len(segment):
                return memoryview(segment)[received:]
            received -= len(segment)
        return None


Received = tuple[bytes, list[tuple[int, int, bytes]], int, Any]
"""What ``socket.recvmsg`` gives: bytes, ancillary data, flags, address."""


class _Rights(NamedTuple):
    """Descriptors that came: of frames that are not over, and those to be closed.

    ``handed`` is the frame that is being handled, if it has some.
    """

    waiting: tuple[int, ...]
    handed: Frame | None
    spent: list[int]


_State = tuple[bytes, int, _Payload | None, list[Received], _Rights]
_pop = operator.methodcaller("pop")


class FrameDecoder:
    """Turns a stream of bytes back into frames, filling large payloads in place.

    Give it bytes with :meth:`feed`, or put them into :attr:`incoming` and call it without any.
    While :meth:`space` returns a view, the next bytes of the stream may be received straight
    into it; their count is then told in :attr:`counts`, before the next :meth:`feed`.
    After a ``FrameError`` the stream has lost its sense and must be closed.

    A frame is dropped when the next one is asked for, and what is known changes in single steps:
    whoever is interrupted while it handles a frame is given that frame again by the next ``feed``,
    unless it took a descriptor of it.
    """

    def __init__(self) -> None:
        # Bytes not decoded yet, from a position on; a frame whose payload is under way; what came
        # since then; descriptors.
        self._state: _State = (b"", 0, None, [], _Rights((), None, []))

    @property
    def incoming(self) -> list[Received]:
        """Where what is received is put, each piece in a single step."""
        return self._state[3]

    def feed(self, data: bytes = b"") -> Iterator[Frame]:
        """Take the next bytes of the stream; yield each frame that they complete.

        Raises:
            FrameError: bad magic, version, kind or size.
            MemoryError: there is no room for a frame.
        """
        if data:
            self.incoming.append((data, [], 0, None))
        if self._state[4].spent:
            self._close_spent()
        if self.incoming:
            self._take()
            if len(self._state[4].waiting) > MAX_FDS:
                raise FrameError("descriptors came that no frame speaks of")
        while True:
            rest, position, payload, incoming, rights = self._state
            if payload is not None:
                if not self._fill(payload):
                    return
                frame = replace(payload.frame)
                position = self._state[1]
            else:
                found = self._next(rest, position)
                if found is None:
                    return
                frame, position = found
                if position < 0:
                    continue  # its payload is under way now
            was_taken = False
            if frame.flags >> 8:
                was_taken = rights.handed is not None and rights.handed.is_taken
                rights = self._hand(frame)
            state = self._state
            if not was_taken:
                yield frame
            if self._state is state:  # else a signal handler waited, and so went on from here
                self._state = (rest, position, None, incoming, rights)
                if rights.spent:
                    self._close_spent()

    @property
    def at_rest(self) -> list[Received] | None:
        """``incoming``, if nothing is under way or waits to be decoded."""
        rest, position, payload, incoming, _ = self._state
        if payload is None and not incoming and position == len(rest):
            return incoming
        return None

    def only(self) -> tuple[Kind, bytes] | None:
        """Kind and body of the batch that all there is makes up, if that is one.

        The quick way for the usual case. It stays until :meth:`drop`; if there is none, ``feed``
        has what there is.
        """
        incoming = self._state[3]
        if len(incoming) != 1:
            return None
        data, ancillary, _, _ = incoming[0]
        kind = _BATCHES.get(data[:_LENGTH_AT])
        if kind is None or ancillary or len(data) < HEADER.size:
            return None
        (size,) = _LENGTH.unpack_from(data, _LENGTH_AT)
        return (kind, data[HEADER.size :]) if len(data) == HEADER.size + size else None

    def whole(self) -> Frame | None:
        """The frame that all there is makes up, as :meth:`only` does for batches.

        If it is one without buffers and descriptors, and none of shared memory.
        """
        incoming = self._state[3]
        data, ancillary, _, _ = incoming[0]
        if len(incoming) != 1 or ancillary or len(data) < HEADER.size:
            return None
        magic, version, number, flags, buffers, ranks, call, mesh, actor, size = _unpack(data)
        kind = _KINDS.get(number)
        start = HEADER.size + 4 * ranks
        if len(data) != start + size or buffers or flags & _LONG_WAY or kind is None:
            return None
        if magic != MAGIC or version != VERSION:
            return None
        numbers = struct.unpack_from(f"<{ranks}I", data, HEADER.size) if ranks else ()
        return Frame(kind, data[start:], (), call, mesh, actor, numbers, flags)

    def drop(self) -> None:
        """Drop what :meth:`only` or :meth:`whole` gave."""
        self._state = (b"", 0, None, [], self._state[4])

    def forsake(self, but_handed: bool = False) -> None:
        """Nothing more is asked for: close all descriptors.

        Args:
            but_handed: not those of a frame that is being handled; they are for another call.
        """
        self._take()
        waiting, handed, spent = self._state[4]
        count = len(handed.fds) if but_handed and handed is not None else 0
        rights = _Rights(waiting[:count], handed, [*spent, *waiting[count:]])
        self._state = (b"", 0, None, [], rights)
        self._close_spent()

    def _hand(self, frame: Frame) -> _Rights:
        """Give a frame its descriptors; what there is when it is over.

        Raises FrameError.
        """
        waiting, handed, spent = self._state[4]
        count = frame.flags >> 8
        if len(waiting) < count:
            raise FrameError(f"{count} descriptors were to come with a frame")
        frame.fds = waiting[:count]
        frame.flags &= 0xFF
        if handed is None or not handed.is_taken:
            self._state = (*self._state[:4], _Rights(waiting, frame, spent))
        return _Rights(waiting[count:], None, [*spent, *frame.fds])

    def _close_spent(self) -> None:
        spent = self._state[4].spent
        # In one step of the interpreter: none is closed twice, none is left.
        collections.deque(map(os.close, map(_pop, itertools.repeat(spent, len(spent)))), 0)

    def _take(self) -> None:
        """Add what came to what is there already."""
        rest, position, payload, incoming, rights = self._state
        came = b"".join([piece[0] for piece in incoming])
        if position < len(rest):
            came = rest[position:] + came
        fds = rights.waiting
        for piece in incoming:
            for level, kind, data in piece[1]:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds += tuple(memoryview(data[: len(data) // 4 * 4]).cast("i"))
        rights = _Rights(fds, rights.handed, rights.spent)
        self._state = (came, 0, payload, [], rights)

    def space(self) -> memoryview | None:
        """Where the next bytes belong, if enough are missing to be worth receiving in place."""
        rest, position, payload, _, _ = self._state
        if payload is None or position < len(rest):
            return None
        missing = payload.missing()
        return missing if missing is not None and len(missing) >= _SMALL else None

    @property
    def counts(self) -> list[int]:
        """Where counts of bytes received into :meth:`space` are told, each in a single step."""
        payload = self._state[2]
        assert payload is not None
        return payload.counts[1]

    @property
    def idle(self) -> bool:
        """True between frames: the stream may end here without losing one."""
        rest, position, payload, _, _ = self._state
        return payload is None and position == len(rest)

    def _next(self, data: bytes, position: int) -> tuple[Frame, int] | None:
        """The frame at a position and where the next one begins; None if more bytes are needed.

        Of a large one only memory is made: then the position is -1.
        """
        left = len(data) - position
        if left < HEADER.size:
            return None
        fields = HEADER.unpack_from(data, position)
        magic, version, number, flags, buffers, ranks, call, mesh, actor, size = fields
        if magic != MAGIC or version != VERSION:
            raise FrameError(f"not a frame of this version: {data[position : position + 4]!r}")
        kind = _KINDS.get(number)
        if kind is None or ranks > MAX_RANKS or size > MAX_SIZE:
            raise FrameError(f"bad frame header: kind {number}, {ranks} ranks, body of {size}")
        start = position + HEADER.size
        if not ranks and not buffers:
            frame = Frame(kind, b"", (), call, mesh, actor, (), flags)
            sizes: tuple[int, ...] = ()
        else:
            table = 4 * ranks + 8 * buffers
            if left < HEADER.size + table:
                return None
            numbers = struct.unpack_from(f"<{ranks}I{buffers}Q", data, start)
            sizes = numbers[ranks:]
            if sizes and max(sizes) > MAX_SIZE:
                raise FrameError(f"bad frame header: buffers of {sizes} bytes")
            start += table
            frame = Frame(kind, b"", (), call, mesh, actor, numbers[:ranks], flags)
        end = start + size + sum(sizes)
        if end - len(data) >= _SMALL:
            self._begin(frame, size, sizes, data, start)
            return frame, -1
        if end > len(data):
            return None
        frame.body = data[start : start + size]
        if sizes:
            start += size
            frame.buffers = parts = []
            for length in sizes:
                parts.append(bytearray(data[start : start + length]))
                start += length
        return frame, end

    def _begin(
        self, frame: Frame, size: int, sizes: tuple[int, ...], data: bytes, start: int
    ) -> None:
        body = _memory(size)
        frame.buffers = buffers = [_memory(length) for length in sizes]
        frame.body = body
        segments = [segment for segment in (body, *buffers) if segment]
        self._state = (data, start, _Payload(frame, segments), *self._state[3:])

    def _fill(self, payload: _Payload) -> bool:
        """Move bytes into a payload's memory; true when it is complete."""
        data, position, _, incoming, rights = self._state
        while (missing := payload.missing()) is not None:
            take = min(len(missing), len(data) - position)
            if take == 0:
                return False
            missing[:take] = memoryview(data)[position : position + take]
            received = payload.counts[0] + take
            position += take
            moved = _Payload(payload.frame, payload.segments)
            moved.counts = (received, [])
            payload = moved
            self._state = (data, position, moved, incoming, rights)
        return True

"""Frames: what travels on a link. Pure: bytes in, frames out, no sockets.

A frame is a fixed header, the ranks it is for, the lengths of its buffers, a body and the
buffers themselves. The header holds all that a relay needs, so a host forwards frames
without looking into their bodies.

======== ===== =======================================================
field    bytes meaning
======== ===== =======================================================
magic        2 ``SM``
version      1 of this layout
kind         1 one of :class:`Kind`
flags        2 reserved, 0
buffers      2 number of out-of-band buffers
ranks        4 number of ranks that follow the header (4 bytes each)
call         8 id of the call this frame belongs to, 0 if none
mesh         4 id of the proc mesh
actor        4 id of the actor within the mesh
body         8 length of the body
======== ===== =======================================================
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from slurmmesh.errors import FrameError

MAGIC = b"SM"
VERSION = 1
HEADER = struct.Struct("<2sBBHHIQIIQ")
MAX_BUFFERS = 0xFFFF
MAX_RANKS = 1 << 20
MAX_SIZE = 1 << 40
"""Largest body or buffer in bytes: a bound against nonsense, far above any real payload."""

_SMALL = 1 << 14
"""Below this many missing bytes a copy is cheaper than a receive call of its own."""

Buffer = bytes | bytearray | memoryview


class Kind(enum.IntEnum):
    """What a frame is about."""

    HELLO = 1
    WELCOME = 2
    CONTROL = 3
    CREATE = 4
    CALL = 5
    CAST = 6
    RESULT = 7
    ERROR = 8
    EVENT = 9
    PING = 10
    PONG = 11


_KINDS = {int(kind): kind for kind in Kind}


@dataclass
class Frame:
    """One message. ``ranks`` are global ranks of the proc mesh ``mesh``."""

    kind: Kind
    body: Buffer = b""
    buffers: Sequence[Buffer] = ()
    call: int = 0
    mesh: int = 0
    actor: int = 0
    ranks: Sequence[int] = field(default=())

    def parts(self) -> list[Buffer]:
        """The frame as byte strings to send one after the other (payloads are not copied).

        Raises:
            FrameError: it has more buffers or ranks, or larger ones, than a frame may have.
        """
        buffers = [memoryview(buffer).cast("B") for buffer in self.buffers]
        sizes = [len(buffer) for buffer in buffers]
        if len(buffers) > MAX_BUFFERS or len(self.ranks) > MAX_RANKS:
            raise FrameError(f"{len(buffers)} buffers for {len(self.ranks)} ranks in one frame")
        header = HEADER.pack(
            MAGIC,
            VERSION,
            self.kind,
            0,
            len(buffers),
            len(self.ranks),
            self.call,
            self.mesh,
            self.actor,
            len(self.body),
        )
        head = header + struct.pack(f"<{len(self.ranks)}I{len(sizes)}Q", *self.ranks, *sizes)
        if len(self.body) <= _SMALL:
            head += self.body
            return [head, *(buffer for buffer in buffers if len(buffer))]
        return [head, self.body, *(buffer for buffer in buffers if len(buffer))]


class FrameDecoder:
    """Turns a stream of bytes back into frames, filling large payloads in place.

    Give it bytes with :meth:`feed`. While :meth:`space` returns a view, the next bytes of the
    stream may be received straight into it and then be told with :meth:`filled`.
    After a ``FrameError`` the stream has lost its sense and must be closed.
    """

    def __init__(self) -> None:
        self._head = bytearray()
        self._need = HEADER.size
        self._fields: tuple[int, ...] | None = None
        self._frame: Frame | None = None
        self._segments: list[bytearray] = []
        self._index = 0
        self._offset = 0

    def feed(self, data: Buffer) -> Iterator[Frame]:
        """Take the next bytes of the stream; yield each frame that they complete.

        Raises:
            FrameError: bad magic, version, kind or size.
        """
        view = memoryview(data)
        position, end = 0, len(view)
        while True:
            if self._frame is None:
                take = min(self._need - len(self._head), end - position)
                self._head += view[position : position + take]
                position += take
                if len(self._head) < self._need:
                    return
                if self._fields is None:
                    self._read_header()
                    continue
                self._read_lengths()
            while self._index < len(self._segments):
                segment = self._segments[self._index]
                take = min(len(segment) - self._offset, end - position)
                segment[self._offset : self._offset + take] = view[position : position + take]
                position += take
                self._offset += take
                if self._offset < len(segment):
                    return
                self._index += 1
                self._offset = 0
            yield self._finish()

    def space(self) -> memoryview | None:
        """Where the next bytes belong, if enough are missing to be worth receiving in place."""
        if self._frame is None or self._index >= len(self._segments):
            return None
        segment = self._segments[self._index]
        if len(segment) - self._offset < _SMALL:
            return None
        return memoryview(segment)[self._offset :]

    def filled(self, count: int) -> Iterator[Frame]:
        """Tell that ``count`` bytes were received into :meth:`space`; yield what they complete."""
        self._offset += count
        return self.feed(b"")

    @property
    def idle(self) -> bool:
        """True between frames: the stream may end here without losing one."""
        return self._frame is None and not self._head

    def _read_header(self) -> None:
        fields = HEADER.unpack(self._head)
        magic, version, kind, _, buffers, ranks, _, _, _, body = fields
        if magic != MAGIC or version != VERSION:
            raise FrameError(f"not a frame of this version: {bytes(self._head[:4])!r}")
        if kind not in _KINDS or ranks > MAX_RANKS or body > MAX_SIZE:
            raise FrameError(f"bad frame header: kind {kind}, {ranks} ranks, body of {body}")
        self._fields = fields
        self._need = HEADER.size + 4 * ranks + 8 * buffers

    def _read_lengths(self) -> None:
        assert self._fields is not None
        _, _, kind, _, buffers, ranks, call, mesh, actor, body = self._fields
        numbers = struct.unpack_from(f"<{ranks}I{buffers}Q", self._head, HEADER.size)
        sizes = numbers[ranks:]
        if any(size > MAX_SIZE for size in sizes):
            raise FrameError(f"bad frame header: buffers of {sizes} bytes")
        payload = [bytearray(size) for size in sizes]
        whole = bytearray(body)
        self._segments = [segment for segment in (whole, *payload) if segment]
        self._index = self._offset = 0
        self._frame = Frame(_KINDS[kind], whole, payload, call, mesh, actor, numbers[:ranks])

    def _finish(self) -> Frame:
        frame = self._frame
        assert frame is not None
        self._frame = self._fields = None
        self._segments = []
        self._head = bytearray()
        self._need = HEADER.size
        return frame

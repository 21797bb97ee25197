"""Objects to bytes and back: pickle protocol 5 with payloads out of band.

Arrays, CPU tensors (``wire/storages.py``) and long bytes travel as buffers next to the pickle, so
they are neither copied into it nor sent through ``torch.save``. Functions and classes that the
other side cannot import (those of ``__main__``, lambdas) travel by value.

Of long ``bytes``, ``bytearray`` and ``str`` pickle knows no way out of band, but the C pickler
hands each as it is to the file it writes to. Where there are such, the body begins with a table
of where in the pickle the last of the buffers belong.

Only bytes of a peer that has proved its identity may be given to :func:`loads`.
"""

from __future__ import annotations

import io
import marshal
import pickle
import struct
import types
from collections.abc import Iterable, Sequence
from typing import Any

import cloudpickle

from slurmmesh.wire.frames import MAX_BUFFERS, Buffer
from slurmmesh.wire.reactor import in_loop_thread
from slurmmesh.wire.storages import Storages

_PLAIN = (type(None), bool, int, float, str)
_INSIDE = 1 << 10
"""A buffer of fewer bytes stays in the pickle: a copy costs less than a buffer in a frame."""
_LONG = 1 << 18
"""Bytes of this length are not copied into the pickle. The pickler's own frames are shorter."""
_TABLE = b"\0"  # no pickle begins so
_COUNT = struct.Struct("<I")


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """Encode ``value``; returns the pickle and its out-of-band buffers.

    Raises:
        TypeError, pickle.PicklingError: something in ``value`` cannot be pickled.
    """
    if _is_plain(value):
        return pickle.dumps(value, protocol=5), []
    pickler = _Pickler(Storages())
    pickler.dump(value)
    while pickler.storages.again:
        pickler = _Pickler(Storages(pickler.storages))
        pickler.dump(value)
    buffers = [buffer.raw() for buffer in pickler.buffers]
    parts = pickler.parts
    if len(parts) == 1:
        return parts[0], buffers
    return _join(parts, buffers)


def dumps_to_send(value: Any) -> tuple[bytes, list[memoryview]]:
    """:func:`dumps`, of what the caller sends, and may change afterwards.

    Who sends waits until the buffers have left. A callback of a loop does not wait: it has copies.
    """
    body, buffers = dumps(value)
    if buffers and in_loop_thread():
        buffers = [memoryview(bytes(buffer)) for buffer in buffers]
    return body, buffers


def _join(parts: list[bytes], buffers: list[memoryview]) -> tuple[bytes, list[memoryview]]:
    """A pickle in parts as a body, with long parts among the buffers."""
    body: list[bytes] = []
    places: list[int] = []
    position = 0
    for part in parts:
        if len(part) >= _LONG and len(buffers) < MAX_BUFFERS:
            buffers.append(memoryview(part))
            places.append(position)
        else:
            body.append(part)
            position += len(part)
    if places:
        body.insert(0, _TABLE + struct.pack(f"<I{len(places)}Q", len(places), *places))
    return b"".join(body), buffers


def loads(body: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Decode what :func:`dumps` made. Arrays and tensors use ``buffers`` as their memory."""
    if body[:1] != _TABLE:
        return pickle.loads(body, buffers=buffers)
    (count,) = _COUNT.unpack_from(body, 1)
    places = struct.unpack_from(f"<{count}Q", body, 1 + _COUNT.size)
    pickled = memoryview(body)[1 + _COUNT.size + 8 * count :]
    first = len(buffers) - count
    parts: list[Buffer] = []
    start = 0
    for place, buffer in zip(places, buffers[first:], strict=True):
        parts += (pickled[start:place], buffer)
        start = place
    parts.append(pickled[start:])
    return pickle.Unpickler(_Parts(parts), buffers=buffers[:first]).load()


class _Parts(io.RawIOBase):
    """A file made of parts."""

    def __init__(self, parts: list[Buffer]) -> None:
        self._left = [memoryview(part).cast("B") for part in reversed(parts)]

    def readinto(self, into: Any) -> int:
        room = memoryview(into).cast("B")
        size = len(room)
        while len(room) and self._left:
            part = self._left.pop()
            take = min(len(part), len(room))
            room[:take] = part[:take]
            room = room[take:]
            if take < len(part):
                self._left.append(part[take:])
        return size - len(room)


def _is_plain(value: Any, depth: int = 3) -> bool:
    """True for small nests of builtin scalars, which need no reducer of ours."""
    kind = type(value)
    if kind in _PLAIN:
        return True
    if depth == 0:
        return False
    items: Iterable[Any]
    if kind in (tuple, list):
        items = value
    elif kind is dict:
        items = (item for pair in value.items() for item in pair)
    else:
        return False
    if len(value) > 64:
        return False
    return all(_is_plain(item, depth - 1) for item in items)


class _Sink(list[Any]):
    """A file for the pickler to write to: what it writes, as it writes it."""

    write = list.append


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with what has memory of its own out of band."""

    def __init__(self, storages: Storages) -> None:
        self.storages = storages
        self.parts = _Sink()
        self.buffers: list[pickle.PickleBuffer] = []
        super().__init__(self.parts, protocol=5, buffer_callback=self._take)

    def _take(self, buffer: pickle.PickleBuffer) -> bool:
        """False takes it out of band; what a frame has no more place for stays in the pickle."""
        if len(self.buffers) == MAX_BUFFERS or memoryview(buffer).nbytes < _INSIDE:
            return True
        self.buffers.append(buffer)
        return False

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.CodeType:
            # cloudpickle would drop the file's name, and tracebacks with it. All nodes run the
            # same Python, so marshal's form does.
            return marshal.loads, (marshal.dumps(obj),)
        if kind is memoryview and obj.c_contiguous and obj.nbytes and len(obj.format) == 1:
            return _view_of, (pickle.PickleBuffer(obj.cast("B")), obj.format, obj.shape)
        reduced = self.storages.reduce(obj)
        return super().reducer_override(obj) if reduced is NotImplemented else reduced


def _view_of(buffer: Any, format: Any, shape: tuple[int, ...]) -> memoryview:
    return memoryview(buffer).cast("B").cast(format, shape)

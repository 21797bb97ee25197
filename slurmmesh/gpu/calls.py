"""The operations as calls of the library: arguments checked, and what they take part in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slurmmesh.errors import UsageError
from slurmmesh.gpu.buffers import Buffer, buffer_of, type_of
from slurmmesh.gpu.library import Library

Reduction = Literal["sum", "product", "max", "min", "average"]
REDUCTIONS: Mapping[str, int] = {"sum": 0, "product": 1, "max": 2, "min": 3, "average": 4}
"""Names, with the numbers of enum sm_reduction."""


@dataclass(frozen=True)
class Call:
    """A call that can be queued: all is checked.

    Attributes:
        name: ``all_reduce`` and so on.
        function: of the bridge; it takes ``arguments``, the communicator and the stream.
        peer: of send and recv; None: all ranks take part.
        buffers: that it uses until it has ended.
    """

    name: str
    function: str
    arguments: tuple[int, ...]
    buffers: tuple[Buffer, ...]
    peer: int | None = None


class Calls:
    """Makes them, for a rank of a communicator. All methods raise UsageError."""

    def __init__(self, library: Library, rank: int, size: int, device: int) -> None:
        self._library = library
        self._rank = rank
        self._size = size
        self._device = device

    def all_reduce(self, tensor: Any, op: str, out: Any) -> Call:
        """Reduce over all ranks; each gets the result."""
        source = self._buffer("tensor", tensor, written=out is None)
        to = source if out is None else self._buffer("out", out, written=True)
        _check_same(source, to)
        _check_apart(source, to, in_place=source.address == to.address)
        kind, count = type_of(self._library, source, computed=True)
        number = self._reduction(op, source)
        return self._call("all_reduce", (source, to), count, kind, number)

    def broadcast(self, tensor: Any, root: int) -> Call:
        """All get what the root has."""
        self._check_rank("root", root)
        both = self._buffer("tensor", tensor, written=root != self._rank)
        kind, count = type_of(self._library, both, computed=False)
        return self._call("broadcast", (both, both), count, kind, root)

    def reduce(self, tensor: Any, root: int, op: str, out: Any) -> Call:
        """Reduce over all ranks; the root gets the result."""
        self._check_rank("root", root)
        source = self._buffer("tensor", tensor, written=out is None and root == self._rank)
        to = source if out is None else self._buffer("out", out, written=True)
        _check_same(source, to)
        _check_apart(source, to, in_place=source.address == to.address)
        kind, count = type_of(self._library, source, computed=True)
        number = self._reduction(op, source)
        return self._call("reduce", (source, to), count, kind, number, root)

    def all_gather(self, tensor: Any, out: Any) -> Call:
        """Each gets what all have."""
        source, to = self._buffer("tensor", tensor), self._buffer("out", out, written=True)
        self._check_share(source, to)
        own = to.address + self._rank * source.bytes
        _check_apart(source, to, in_place=source.address == own)
        kind, count = type_of(self._library, source, computed=False)
        return self._call("all_gather", (source, to), count, kind)

    def reduce_scatter(self, tensor: Any, out: Any, op: str) -> Call:
        """Reduce over all ranks; each gets its share."""
        source, to = self._buffer("tensor", tensor), self._buffer("out", out, written=True)
        self._check_share(to, source)
        own = source.address + self._rank * to.bytes
        _check_apart(source, to, in_place=to.address == own)
        kind, count = type_of(self._library, to, computed=True)
        return self._call("reduce_scatter", (source, to), count, kind, self._reduction(op, source))

    def send(self, tensor: Any, to: int) -> Call:
        """To a rank."""
        self._check_rank("to", to)
        source = self._buffer("tensor", tensor)
        kind, count = type_of(self._library, source, computed=False)
        return self._call("send", (source,), count, kind, to, peer=to)

    def recv(self, tensor: Any, source: int) -> Call:
        """From a rank."""
        self._check_rank("source", source)
        to = self._buffer("tensor", tensor, written=True)
        kind, count = type_of(self._library, to, computed=False)
        return self._call("recv", (to,), count, kind, source, peer=source)

    def _call(
        self, name: str, buffers: tuple[Buffer, ...], *numbers: int, peer: int | None = None
    ) -> Call:
        addresses = tuple(buffer.address for buffer in buffers)
        return Call(name, f"sm_ccl_{name}", (*addresses, *numbers), buffers, peer)

    def _buffer(self, name: str, tensor: Any, *, written: bool = False) -> Buffer:
        return buffer_of(self._library, self._device, name, tensor, written=written)

    def _check_rank(self, name: str, rank: Any) -> None:
        if type(rank) is not int or not 0 <= rank < self._size:
            raise UsageError(f"{name}={rank!r}: ranks are 0 to {self._size - 1}")

    def _check_share(self, part: Buffer, whole: Buffer) -> None:
        _check_type(part, whole)
        if part.count * self._size != whole.count:
            raise UsageError(
                f"{whole.name} has {whole.count} elements; of {self._size} ranks with "
                f"{part.count} in {part.name} it takes {part.count * self._size}"
            )

    def _reduction(self, op: str, buffer: Buffer) -> int:
        number = REDUCTIONS.get(op) if isinstance(op, str) else None
        if number is None:
            raise UsageError(f"op={op!r}: it is one of {', '.join(REDUCTIONS)}")
        return number


def _check_type(one: Buffer, other: Buffer) -> None:
    if one.element != other.element:
        raise UsageError(
            f"{one.name} is of {one.element.name}, {other.name} of {other.element.name}"
        )


def _check_same(source: Buffer, to: Buffer) -> None:
    _check_type(source, to)
    if source.count != to.count:
        raise UsageError(
            f"{source.name} has {source.count} elements, {to.name} has {to.count}: they must be as "
            "many"
        )


def _check_apart(source: Buffer, to: Buffer, *, in_place: bool) -> None:
    if not in_place and source.address < to.end and to.address < source.end:
        raise UsageError(f"{source.name} and {to.name} overlap")

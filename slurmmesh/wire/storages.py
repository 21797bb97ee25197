"""How tensors and arrays travel: as views of the memory they share.

Each memory of a value is sent once, however many tensors or arrays are views of it, and they
arrive as views of one memory again. Only the bytes that they cover travel, not the whole of it.

Which views a memory has is known only at the end. So a value is first pickled as if each had
one; if one has several that the first does not cover, it is pickled again with what was learned.
"""

from __future__ import annotations

import ctypes
import pickle
import sys
from typing import Any

_ALIGNMENT = 64
_Key = tuple[int, int]  # address and size


class Memory:
    """Bytes that views share. Pickled as one out-of-band buffer."""

    __slots__ = ("_storage", "buffer")

    def __init__(self, buffer: Any) -> None:
        self.buffer = memoryview(buffer)
        self._storage: Any = None

    def __reduce__(self) -> Any:
        return Memory, (pickle.PickleBuffer(self.buffer),)

    def tensor(
        self,
        dtype: Any,
        offset: int,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        requires_grad: bool,
        is_parameter: bool,
    ) -> Any:
        """A tensor in it; ``offset`` counts bytes, ``stride`` items."""
        import torch

        tensor = torch.empty(0, dtype=dtype)
        if len(self.buffer):
            if self._storage is None:
                self._storage = torch.frombuffer(self.buffer, dtype=torch.uint8).untyped_storage()
            tensor.set_(self._storage, offset // dtype.itemsize, shape, stride)
        else:
            tensor = torch.empty_strided(shape, stride, dtype=dtype)
        if is_parameter:
            return torch.nn.Parameter(tensor, requires_grad=requires_grad)
        return tensor.requires_grad_(requires_grad)

    def array(
        self, dtype: Any, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
    ) -> Any:
        """An array in it; ``offset`` and ``strides`` count bytes."""
        import numpy

        return numpy.ndarray(shape, dtype, self.buffer, offset, strides)


class _Source:
    """A memory of the sender.

    Attributes:
        low, high: what its views cover, in bytes from its beginning.
        begin, end: what is sent of it.
        sent: those bytes; None while a copy of the one view there is so far is sent instead.
        split: there are views beyond what is sent.
    """

    __slots__ = ("begin", "end", "high", "low", "owner", "sent", "split")

    def __init__(self, owner: Any) -> None:
        self.owner = owner  # so that no other memory gets its address meanwhile
        self.low = self.high = self.begin = self.end = 0
        self.sent: Memory | None = None
        self.split = False


class Storages:
    """The memories of one value while it is pickled.

    Args:
        known: of the attempt before, whose result was of no use.
    """

    def __init__(self, known: Storages | None = None) -> None:
        self._known = known
        self._sources: dict[_Key, _Source] = {}
        self.again = False
        """Whether the value has to be pickled again, with these as ``known``."""
        self.torch = sys.modules.get("torch")
        self.numpy = sys.modules.get("numpy")
        self.tensor = getattr(self.torch, "Tensor", None)
        self.parameter = getattr(getattr(self.torch, "nn", None), "Parameter", None)
        self.ndarray = getattr(self.numpy, "ndarray", None)

    def reduce(self, value: Any) -> Any:
        """How a tensor or an array is pickled; NotImplemented if that is not for us to say.

        Raises:
            pickle.PicklingError: a tensor of an autograd graph.
        """
        kind = type(value)
        if kind is self.ndarray:
            return self._reduce_array(value)
        if kind is self.tensor or kind is self.parameter:
            return self._reduce_tensor(value, kind is self.parameter)
        return NotImplemented

    def _reduce_tensor(self, tensor: Any, is_parameter: bool) -> Any:
        torch: Any = self.torch
        if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
            return NotImplemented
        if tensor.is_conj() or tensor.is_neg():
            return NotImplemented
        if tensor.requires_grad and not tensor.is_leaf:
            raise pickle.PicklingError(
                "a tensor that is part of an autograd graph cannot be sent: send tensor.detach()"
            )
        shape, stride = tuple(tensor.shape), tensor.stride()
        flags = (tensor.requires_grad, is_parameter)
        item = tensor.element_size()
        if not tensor.numel():
            return Memory.tensor, (Memory(bytearray()), tensor.dtype, 0, shape, stride, *flags)
        storage = tensor.untyped_storage()
        low = tensor.storage_offset() * item
        high = low + item * (1 + sum((n - 1) * s for n, s in zip(shape, stride, strict=True)))
        place = self._place(
            storage, (storage.data_ptr(), storage.nbytes()), low, high, tensor.numel() * item
        )
        if place is None:
            dense = tensor.detach().contiguous()
            sent, offset, stride = Memory(memory_of(dense)), 0, dense.stride()
        else:
            sent, offset = place
        return Memory.tensor, (sent, tensor.dtype, offset, shape, stride, *flags)

    def _reduce_array(self, array: Any) -> Any:
        dtype, shape, strides = array.dtype, array.shape, array.strides
        if dtype.hasobject or not dtype.itemsize:
            return NotImplemented
        if not array.size:
            return Memory.array, (Memory(bytearray()), dtype, 0, shape, None)
        place = None
        overlapping = not all(s or n == 1 for n, s in zip(shape, strides, strict=True))
        owner, address, size = _owner(array)
        steps = [(n - 1) * s for n, s in zip(shape, strides, strict=True)]
        begin = array.__array_interface__["data"][0] - address
        low = begin + sum(step for step in steps if step < 0)
        high = begin + sum(step for step in steps if step > 0) + dtype.itemsize
        if not overlapping and low >= 0 and high <= size:
            place = self._place(owner, (address, size), low, high, array.nbytes)
        if place is None:
            dense = self.numpy.ascontiguousarray(array)  # type: ignore[union-attr]
            sent, offset, strides = Memory(_bytes_of_array(dense)), 0, None
        else:
            sent, offset = place
            offset += begin - low
        return Memory.array, (sent, dtype, offset, shape, strides)

    def _place(
        self, owner: Any, key: _Key, low: int, high: int, size: int
    ) -> tuple[Memory, int] | None:
        """Where a view of a memory is in what is sent of it; None if a copy is sent instead."""
        source = self._sources.get(key)
        if source is None:
            source = self._sources[key] = _Source(owner)
            source.low, source.high = low, high
            begin, source.end = low, high
            known = self._known
            before = None if known is None else known._sources.get(key)
            if known is not None and (before is None or known._known is not None):
                begin, source.end = 0, key[1]  # it changes as it is pickled: no views can be told
            elif before is not None and before.split:
                begin, source.end = before.low, before.high
            elif 2 * size < high - low:
                return None  # much of it nobody wants
            source.begin = begin - begin % _ALIGNMENT
            source.sent = Memory(_bytes_at(key[0] + source.begin, source.end - source.begin, owner))
        source.low, source.high = min(low, source.low), max(high, source.high)
        if source.sent is None or low < source.begin or high > source.end:
            source.split = self.again = True
            return None
        return source.sent, low - source.begin


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, without a copy. Keeps the tensor alive."""
    return _bytes_at(tensor.data_ptr(), tensor.numel() * tensor.element_size(), tensor)


def _bytes_of_array(array: Any) -> memoryview:
    return _bytes_at(array.__array_interface__["data"][0], array.nbytes, array)


def _bytes_at(address: int, size: int, owner: Any) -> memoryview:
    """Bytes at an address, writable; they keep their owner alive."""
    if size == 0:  # it may have no address
        return memoryview(bytearray())
    array: Any = (ctypes.c_ubyte * size).from_address(address)
    array.owner = owner
    return memoryview(array).cast("B")


def _owner(array: Any) -> tuple[Any, int, int]:
    """What an array is a view of: the object that has the memory, its address and its size."""
    import numpy

    while type(array.base) is numpy.ndarray:
        array = array.base
    if array.base is not None:
        try:
            whole = numpy.frombuffer(array.base, numpy.uint8)
            return array.base, whole.__array_interface__["data"][0], whole.nbytes
        except (TypeError, ValueError, BufferError):
            pass  # an owner that does not tell
    return array, array.__array_interface__["data"][0], array.nbytes

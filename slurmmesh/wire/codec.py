"""Objects to bytes and back: pickle protocol 5 with payloads out of band.

Arrays, bytes-like objects that support it and CPU tensors travel as buffers next to the
pickle, so they are neither copied into it nor sent through ``torch.save``. Functions and
classes that the other side cannot import (those of ``__main__``, lambdas) travel by value.

Only bytes of a peer that has proved its identity may be given to :func:`loads`.
"""

from __future__ import annotations

import ctypes
import io
import marshal
import pickle
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import cloudpickle

from slurmmesh.wire.frames import MAX_BUFFERS, Buffer

_PLAIN = (type(None), bool, int, float, str)


def dumps(value: Any) -> tuple[bytes, list[memoryview]]:
    """Encode ``value``; returns the pickle and its out-of-band buffers.

    Raises:
        TypeError, pickle.PicklingError: something in ``value`` cannot be pickled.
    """
    if _is_plain(value):
        return pickle.dumps(value, protocol=5), []
    buffers: list[pickle.PickleBuffer] = []

    def take(buffer: pickle.PickleBuffer) -> bool:
        """False takes it out of band; what a frame has no more place for stays in the pickle."""
        if len(buffers) == MAX_BUFFERS:
            return True
        buffers.append(buffer)
        return False

    stream = io.BytesIO()
    _Pickler(stream, take).dump(value)
    return stream.getvalue(), [buffer.raw() for buffer in buffers]


def loads(body: Buffer, buffers: Sequence[Buffer] = ()) -> Any:
    """Decode what :func:`dumps` made. Arrays and tensors use ``buffers`` as their memory."""
    return pickle.loads(body, buffers=buffers)


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


class _Pickler(cloudpickle.Pickler):
    """cloudpickle, with tensors as out-of-band buffers."""

    def __init__(
        self, stream: io.BytesIO, buffer_callback: Callable[[pickle.PickleBuffer], Any]
    ) -> None:
        super().__init__(stream, protocol=5, buffer_callback=buffer_callback)
        torch = sys.modules.get("torch")
        self._tensor = getattr(torch, "Tensor", None)
        self._parameter = getattr(getattr(torch, "nn", None), "Parameter", None)

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.CodeType:
            # cloudpickle would drop the file's name, and tracebacks with it. All nodes run the
            # same Python, so marshal's form does.
            return marshal.loads, (marshal.dumps(obj),)
        if self._tensor is not None and kind in (self._tensor, self._parameter):
            reduced = _reduce_tensor(obj, is_parameter=kind is self._parameter)
            if reduced is not None:
                return reduced
        return super().reducer_override(obj)


def _reduce_tensor(tensor: Any, is_parameter: bool) -> Any:
    """How a dense CPU tensor travels; None for kinds that torch must pickle itself."""
    import torch

    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        return None
    if tensor.is_conj() or tensor.is_neg():
        return None
    if tensor.requires_grad and not tensor.is_leaf:
        raise pickle.PicklingError(
            "a tensor that is part of an autograd graph cannot be sent: send tensor.detach()"
        )
    dense = tensor.detach().contiguous()
    arguments = (dense.dtype, tuple(dense.shape), tensor.requires_grad, is_parameter)
    return _rebuild_tensor, (pickle.PickleBuffer(memory_of(dense)), *arguments)


def memory_of(tensor: Any) -> memoryview:
    """The bytes of a contiguous CPU tensor, writable, without a copy. Keeps the tensor alive."""
    size = tensor.numel() * tensor.element_size()
    if size == 0:  # it may have no address
        return memoryview(bytearray())
    array: Any = (ctypes.c_ubyte * size).from_address(tensor.data_ptr())
    array.tensor = tensor
    return memoryview(array).cast("B")


def _rebuild_tensor(
    buffer: Any, dtype: Any, shape: tuple[int, ...], requires_grad: bool, is_parameter: bool
) -> Any:
    import torch

    if memoryview(buffer).nbytes:
        tensor = torch.frombuffer(buffer, dtype=dtype).view(shape)
    else:
        tensor = torch.empty(shape, dtype=dtype)
    if is_parameter:
        return torch.nn.Parameter(tensor, requires_grad=requires_grad)
    return tensor.requires_grad_(requires_grad)

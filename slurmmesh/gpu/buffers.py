"""What collectives work on: the memory behind tensors, checked before anything is queued."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.gpu.dlpack import ELEMENTS, Element, element_of
from slurmmesh.gpu.library import Library
from slurmmesh.gpu.streams import number_of, torch_stream

# Numbers of enum sm_type.
TYPES = {
    "int8": 0,
    "uint8": 1,
    "int32": 2,
    "uint32": 3,
    "int64": 4,
    "uint64": 5,
    "float16": 6,
    "float32": 7,
    "float64": 8,
    "bfloat16": 9,
    "float8_e4m3fn": 10,
    "float8_e5m2": 11,
}
_FLOAT8_SINCE = 22400  # version of NCCL and RCCL
_DEVICE, _MANAGED = 2, 3  # enum sm_pointer
_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex", "b": "bool"}


@dataclass(frozen=True)
class Buffer:
    """Dense memory of a device, of one type.

    Attributes:
        name: of the argument, for texts.
        address: 0 only if there are no elements.
        count: of elements.
        stream: the one that whoever made it works in; None: nobody says.
        owner: keeps the memory alive.
    """

    name: str
    address: int
    count: int
    element: Element
    stream: int | None
    owner: Any

    @property
    def bytes(self) -> int:
        return self.count * self.element.bytes

    @property
    def end(self) -> int:
        return self.address + self.bytes


def buffer_of(
    library: Library, device: int, name: str, tensor: Any, *, written: bool = False
) -> Buffer:
    """The memory of a tensor: torch's, ``DeviceMemory``, or anything with
    ``__cuda_array_interface__``.

    Args:
        device: index of the device that it must be memory of.
        name: of the argument, for texts.
        written: the operation writes to it.

    Raises:
        UsageError: it is nothing of that kind, not dense, read-only, or not memory of the device.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(tensor, torch.Tensor):
        found = _of_torch(torch, name, tensor)
    else:
        found = _of_interface(name, tensor, written)
    if found.count:
        _check_place(library, device, found)
    return found


def type_of(library: Library, buffer: Buffer, *, computed: bool) -> tuple[int, int]:
    """The library's type of a buffer's elements, and their count in it.

    What is only moved goes as bytes where the library has no such type.

    Args:
        computed: the operation computes with the elements.

    Raises:
        UsageError: the library cannot compute with them.
    """
    number = TYPES.get(buffer.element.name)
    if not computed and (number is None or number > TYPES["bfloat16"]):
        return TYPES["uint8"], buffer.bytes
    if number is None:
        raise UsageError(
            f"{buffer.name} is of {buffer.element.name}, which cannot be reduced; there are "
            f"{', '.join(TYPES)}. A complex tensor can be, as torch.view_as_real(tensor)"
        )
    if number > TYPES["bfloat16"] and library.ask("sm_ccl_version") < _FLOAT8_SINCE:
        raise UsageError(
            f"{buffer.name} is of {buffer.element.name}, which {library.path('ccl')} cannot "
            "reduce: that needs 2.24 or later"
        )
    return number, buffer.count


def _of_torch(torch: Any, name: str, tensor: Any) -> Buffer:
    if tensor.layout != torch.strided or not tensor.is_contiguous():
        raise UsageError(f"{name} is not contiguous: pass tensor.contiguous()")
    if tensor.is_conj() or tensor.is_neg():
        raise UsageError(f"{name} is a view that is not computed yet: pass tensor.resolve_conj()")
    stream = torch_stream(tensor.device.index) if tensor.device.type == "cuda" else None
    return Buffer(name, tensor.data_ptr(), tensor.numel(), element_of(tensor.dtype), stream, tensor)


def _of_interface(name: str, tensor: Any, written: bool) -> Buffer:
    told = getattr(tensor, "__cuda_array_interface__", None)
    if not isinstance(told, Mapping):
        raise UsageError(
            f"{name} is {type(tensor).__name__}: pass a tensor of torch, DeviceMemory, or an "
            "array of a device (__cuda_array_interface__)"
        )
    try:
        shape: tuple[int, ...] = tuple(int(length) for length in told["shape"])
        kind = str(told["typestr"])
        address, read_only = int(told["data"][0]), told["data"][1]
        strides = None if told.get("strides") is None else tuple(told["strides"])
    except (LookupError, TypeError, ValueError) as error:
        raise UsageError(f"{name}: its __cuda_array_interface__ is not valid: {error!r}") from error
    element = _element(name, kind)
    count = prod(shape)
    if min(shape, default=0) < 0:
        raise UsageError(f"{name}: its __cuda_array_interface__ is not valid: {shape=}")
    if told.get("mask") is not None:
        raise UsageError(f"{name} has a mask")
    if written and read_only:
        raise UsageError(f"{name} is read-only, and would be written")
    if strides is not None and count and strides != _dense(shape, element.bytes):
        raise UsageError(f"{name} is not contiguous: pass a dense copy")
    stream = told.get("stream")
    stream = None if stream is None else number_of(stream)
    if stream == 1:  # its number for the default stream
        stream = 0
    return Buffer(name, address, count, element, stream, tensor)


def _element(name: str, kind: str) -> Element:
    """Of a type as numpy writes it: ``<f4``."""
    order, letter, size = kind[:1], _KINDS.get(kind[1:2]), kind[2:]
    if order in "<|=" and letter and size.isdecimal():
        bits = "" if letter == "bool" else str(8 * int(size))
        found = ELEMENTS.get(letter + bits)
        if found:
            return found
    raise UsageError(f"{name} is of type {kind!r}, which no collective knows")


def _dense(shape: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Strides in bytes of a dense array, row by row."""
    strides = []
    for length in reversed(shape):
        strides.append(size)
        size *= length
    return tuple(reversed(strides))


def _check_place(library: Library, device: int, buffer: Buffer) -> None:
    """It is memory of the device; the emulator's devices reach that of the host, too."""
    if not 0 < buffer.address <= buffer.end <= 1 << 64:
        raise UsageError(
            f"{buffer.name} has no memory: {buffer.bytes} bytes at {buffer.address:#x}"
        )
    kind = library.ffi.new("int *")
    where = library.ffi.new("int *")
    library.call("sm_pointer_kind", buffer.address, kind, where)
    if kind[0] == _MANAGED or (kind[0] == _DEVICE and where[0] == device):
        return
    if kind[0] == _DEVICE:
        raise UsageError(
            f"{buffer.name} is memory of device {where[0]}; the communicator is of device {device}"
        )
    if not library.emulated:
        raise UsageError(
            f"{buffer.name} lies in the host's memory: move it to device {device}, as in "
            f"tensor.to('cuda:{device}')"
        )

"""Device memory as tensors of others, without a copy: DLPack's types and its capsules."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.gpu.library import Library

CPU, CUDA, ROCM = 1, 2, 10  # enum sm_dlpack_device
_MAX_DIMENSIONS = 64
_INT, _UINT, _FLOAT, _BFLOAT, _COMPLEX, _BOOL = 0, 1, 2, 4, 5, 6  # enum sm_dlpack_type


@dataclass(frozen=True)
class Element:
    """What a tensor consists of, as DLPack has it. ``code``: enum sm_dlpack_type."""

    name: str
    code: int
    bits: int

    @property
    def bytes(self) -> int:
        return self.bits // 8


ELEMENTS = {
    element.name: element
    for element in (
        *(Element(f"int{bits}", _INT, bits) for bits in (8, 16, 32, 64)),
        *(Element(f"uint{bits}", _UINT, bits) for bits in (8, 16, 32, 64)),
        *(Element(f"float{bits}", _FLOAT, bits) for bits in (16, 32, 64)),
        *(Element(f"complex{bits}", _COMPLEX, bits) for bits in (64, 128)),
        Element("bfloat16", _BFLOAT, 16),
        Element("bool", _BOOL, 8),
        Element("float8_e4m3fn", 10, 8),
        Element("float8_e4m3fnuz", 11, 8),
        Element("float8_e5m2", 12, 8),
        Element("float8_e5m2fnuz", 13, 8),
    )
}
"""By name, which is torch's and numpy's."""


def element_of(dtype: Any) -> Element:
    """The element of a name, a torch or a numpy type: ``"float32"``, ``torch.float32``.

    Raises:
        UsageError: there is no such type.
    """
    name = getattr(dtype, "name", None) or getattr(dtype, "__name__", None) or str(dtype)
    element = ELEMENTS.get(name.removeprefix("torch."))
    if element is None:
        raise UsageError(f"no tensor can be of type {dtype!r}; there are {', '.join(ELEMENTS)}")
    return element


def layout(
    element: Element, shape: Sequence[int] | None, offset: int, size: int
) -> tuple[int, ...]:
    """The shape of a tensor in ``size`` bytes, from ``offset`` on, after checks.

    Without a shape it has one dimension, up to the end.

    Raises:
        UsageError: it does not fit, or starts amid an element.
    """
    offset = whole(offset)
    if not 0 <= offset <= size or offset % element.bytes:
        raise UsageError(
            f"a tensor of {element.name} starts at a multiple of {element.bytes} from 0 to {size}, "
            f"not at {offset}"
        )
    if shape is None:
        return ((size - offset) // element.bytes,)
    try:
        sizes = tuple(whole(length) for length in shape)
    except TypeError:
        raise UsageError(f"a tensor has a sequence of sizes, not {shape!r}") from None
    if len(sizes) > _MAX_DIMENSIONS or min(sizes, default=0) < 0:
        raise UsageError(f"a tensor has up to {_MAX_DIMENSIONS} sizes from 0 on, not {sizes}")
    if prod(max(length, 1) for length in sizes) >= 1 << 63:  # of an empty one, too: it has strides
        raise UsageError(f"no tensor has sizes as these: {sizes}")
    if prod(sizes) * element.bytes > size - offset:
        raise UsageError(
            f"a tensor of {element.name} {sizes} takes {prod(sizes) * element.bytes} bytes; from "
            f"{offset} on there are {size - offset}: grow the memory first"
        )
    return sizes


def whole(number: Any) -> int:
    """A number of bytes or elements, as int.

    Raises:
        UsageError: it is not whole.
    """
    try:
        return operator.index(number)
    except TypeError:
        raise UsageError(f"sizes and offsets are whole numbers, not {number!r}") from None


def device_of(library: Library, device: int) -> tuple[int, int]:
    """What ``__dlpack_device__`` says. The emulator's memory is the host's."""
    if library.emulated:
        return CPU, 0
    return (ROCM if library.platform == "rocm" else CUDA), device


def capsule(
    library: Library,
    owner: Any,
    address: int,
    device: tuple[int, int],
    element: Element,
    shape: tuple[int, ...],
) -> Any:
    """A PyCapsule "dltensor", which holds the owner; a tensor that nobody takes ends with it.

    Args:
        owner: a ``sm_owner *``.
        device: of ``device_of``.
    """
    sizes = library.ffi.new("int64_t[]", shape)
    made = library.ffi.new("void **")
    library.call(
        *("sm_dlpack_new", owner, address, *device, element.code, element.bits),
        *(len(shape), sizes, made),
    )
    try:
        return _new_capsule(
            _number(library, made[0]),
            _number(library, library.lib.sm_capsule_name),
            _number(library, library.ffi.addressof(library.lib, "sm_capsule_end")),
        )
    except BaseException:
        library.lib.sm_dlpack_delete(made[0])
        raise


def _number(library: Library, pointer: Any) -> int:
    return int(library.ffi.cast("uintptr_t", pointer))


# cffi passes no Python objects, so capsules are made from here. A function of its own: the one that
# is an attribute of pythonapi is everybody's, and others declare its arguments otherwise.
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))

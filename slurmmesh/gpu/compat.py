"""CUDA's names for the functions of whichever GPU library there is, for ctypes code.

``compat.cuMemCreate`` is ``cuMemCreate`` where CUDA is and ``hipMemCreate`` where ROCm is, with the
argument types of the bridge's own table. So what had ``cuda = ctypes.CDLL("libcuda.so.1")`` takes
``from slurmmesh.gpu import compat as cuda`` instead.

A function returns the library's own code, 0 for success. Numbers of errors are the same in both
libraries where both have them. These are the bare functions: unlike the rest of slurmmesh.gpu they
do not notice a fork, and check nothing. What differs is in docs/gpu.md.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from typing import Any

from slurmmesh.errors import GpuUnsupported, UsageError
from slurmmesh.gpu.library import Library, Symbol, load

Function = Callable[..., Any]


class CUmemLocation(ctypes.Structure):
    """Where memory is: a device."""

    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _AllocFlags(ctypes.Structure):
    _fields_ = (
        ("compressionType", ctypes.c_ubyte),
        ("gpuDirectRDMACapable", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class CUmemAllocationProp(ctypes.Structure):
    """What memory is to be made; laid out alike in CUDA and in HIP from 5.7 on."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("requestedHandleTypes", ctypes.c_int),
        ("location", CUmemLocation),
        ("win32HandleMetaData", ctypes.c_void_p),
        ("allocFlags", _AllocFlags),
    )


class CUmemAccessDesc(ctypes.Structure):
    """Who may reach a range."""

    _fields_ = (("location", CUmemLocation), ("flags", ctypes.c_int))


# cbridge/layouts.h has them too, held against the libraries' headers.
CUDA_SUCCESS = 0
CU_MEM_ALLOCATION_TYPE_PINNED = 1
CU_MEM_LOCATION_TYPE_DEVICE = 1
CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR = 1
CU_MEM_ALLOC_GRANULARITY_MINIMUM = 0
CU_MEM_ACCESS_FLAGS_PROT_READWRITE = 3
CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1
CU_STREAM_NON_BLOCKING = 1
CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2

# Numbers that differ: HIP's, CUDA's.
_NUMBERS = {
    "CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED": (89, 102),
    "CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED": (94, 110),
    "CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED": (93, 124),
}
_HIP_COPY_DEFAULT = 4
_HIP_7_1 = 70_100_000
"""From here on hipMemImportFromShareableHandle takes the descriptor itself, as CUDA does."""


def translate(name: str) -> str:
    """What the library of this process calls a function of CUDA: ``hipMemCreate``.

    ``cuStreamDestroy`` is found as ``cuStreamDestroy_v2``, as CUDA's own headers have it.

    Raises:
        UsageError: slurmmesh's table has no such function of CUDA.
        GpuUnsupported: ROCm has no such function, or the library is too old for it.
        GpuUnavailable: there is no GPU library.
    """
    library = load()
    return _own_name(library, _serving(library, name)[1])


def has(name: str) -> bool:
    """Whether this module has that function of CUDA with the library of this process.

    Raises:
        GpuUnavailable: there is no GPU library.
    """
    try:
        _function(name)
    except (GpuUnsupported, UsageError):
        return False
    return True


def names() -> tuple[str, ...]:
    """Every function of CUDA that the table knows; ``has`` says which are there.

    Raises:
        GpuUnavailable: there is no GPU library.
    """
    return tuple(_table(load()))


def __getattr__(name: str) -> Any:
    """A function, or a number, by its name in CUDA. Raises as ``translate`` does."""
    if name in _NUMBERS:
        return _NUMBERS[name][load().platform == "cuda"]
    if not name.startswith("cu"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return _function(name)
    except UsageError as error:
        raise AttributeError(str(error)) from None


@functools.cache
def _function(name: str) -> Function:
    library = load()
    asked, serving = _serving(library, name)
    if library.platform == "cuda":
        return _bound(library, serving)
    function = _on_hip(library, serving)
    if asked is not serving:
        return _ADAPTED[asked.neutral](function)
    if asked.neutral == "memory_import" and library.ask("sm_runtime_version") < _HIP_7_1:
        return _import_by_pointer(function)
    return function


# ------------------------------------------------------------------ the table


@functools.cache
def _table(library: Library) -> dict[str, Symbol]:
    return {row.cuda: row for row in library.symbols() if row.cuda.startswith("cu")}


def _row(library: Library, neutral: str) -> Symbol:
    return next(row for row in library.symbols() if row.neutral == neutral)


def _own_name(library: Library, symbol: Symbol) -> str:
    return symbol.hip if library.platform == "rocm" else symbol.cuda


def _serving(library: Library, name: str) -> tuple[Symbol, Symbol]:
    """The row of the table for a function of CUDA, and the one that serves it here.

    Raises UsageError and GpuUnsupported as ``translate`` does.
    """
    table = _table(library)
    asked = table.get(name) or table.get(f"{name}_v2")
    if asked is None:
        raise UsageError(f"slurmmesh's table has no function {name} of CUDA: see compat.names()")
    serving = asked
    if library.platform == "rocm" and asked.neutral in _OTHERS:
        serving = _row(library, _OTHERS[asked.neutral])
    own = _own_name(library, serving)
    if not own:
        hint = "; hipSetDevice makes a device current" if "context" in asked.neutral else ""
        raise GpuUnsupported(f"ROCm has nothing for {name}{hint}", symbol=name)
    if not serving.present:
        path = library.path(serving.kind)
        raise GpuUnsupported(f"the library has no {own}", symbol=own, library=path)
    return asked, serving


# ------------------------------------------------------------------ types


class _Handle:
    """A handle, stream or device address: a number, or something of ctypes that has one."""

    @classmethod
    def from_param(cls, value: Any) -> ctypes.c_uint64:
        return ctypes.c_uint64(getattr(value, "value", value) or 0)


_TYPES: dict[str, Any] = {
    "int": ctypes.c_int,
    "unsigned": ctypes.c_uint,
    "unsigned char": ctypes.c_ubyte,
    "unsigned long long": ctypes.c_ulonglong,
    "size_t": ctypes.c_size_t,
    "uint64_t": _Handle,
}


def _bound(library: Library, symbol: Symbol) -> Any:
    """The function itself."""
    function = ctypes.CDLL(library.path(symbol.kind))[_own_name(library, symbol)]
    returned, _, arguments = symbol.type.rstrip(")").partition("(")
    words = [word.strip() for word in arguments.split(",")]
    function.restype = ctypes.c_char_p if returned.strip().endswith("*") else ctypes.c_int
    function.argtypes = [_type(word) for word in words if word != "void"]
    return function


def _type(text: str) -> Any:
    return ctypes.c_void_p if text.endswith("*") else _TYPES[text]


# ------------------------------------------------------------------ on ROCm


def _on_hip(library: Library, symbol: Symbol) -> Any:
    """HIP's last error is cleared when it fails: CUDA's driver has none, and torch asks for it."""
    function = _bound(library, symbol)
    if function.restype is not ctypes.c_int:
        return function
    clear = _bound(library, _row(library, "last_error"))

    def call(*arguments: Any) -> int:
        code: int = function(*arguments)
        if code:
            clear()
        return code

    return call


def _into(function: Any) -> Function:
    """A text by an out parameter, not as what is returned."""
    function.restype = ctypes.c_void_p  # the library's own text, not a copy

    def call(code: int, out: Any) -> int:
        ctypes.cast(out, ctypes.POINTER(ctypes.c_void_p))[0] = function(code)
        return CUDA_SUCCESS

    return call


def _import_by_pointer(function: Function) -> Function:
    """Before 7.1 HIP wants the address of the descriptor."""

    def call(handle: Any, descriptor: Any, kind: int) -> Any:
        number = ctypes.c_int(getattr(descriptor, "value", descriptor) or 0)
        return function(handle, ctypes.byref(number), kind)

    return call


# What HIP has by another form: rows of the table, CUDA's and HIP's, and what makes one the other.
_OTHERS = {
    "cuda_error_name": "hip_error_name",
    "cuda_error_string": "hip_error_string",
    "runtime_error_name": "hip_error_name",
    "cuda_copy": "hip_copy",
    "cuda_copy_async": "hip_copy_async",
    "cuda_fill": "hip_fill",
}
_ADAPTED: dict[str, Callable[[Function], Function]] = {
    "cuda_error_name": _into,
    "cuda_error_string": _into,
    "runtime_error_name": lambda function: function,
    "cuda_copy": lambda function: lambda to, of, n: function(to, of, n, _HIP_COPY_DEFAULT),
    "cuda_copy_async": lambda function: (
        lambda to, of, n, stream: function(to, of, n, _HIP_COPY_DEFAULT, stream)
    ),
    "cuda_fill": lambda function: lambda to, value, n: function(to, value, n),
}

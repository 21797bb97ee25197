"""What the tests of CUDA's names run: code as it is written for CUDA, on each GPU in turn."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest

from slurmmesh import gpu
from slurmmesh.errors import GpuUnsupported, UsageError
from slurmmesh.gpu import compat as cuda
from slurmmesh.gpu.library import load

SIZE = 2 << 20


def check(code: int) -> None:
    assert code == cuda.CUDA_SUCCESS, code


def prepared() -> Any:
    """A property for memory of device 0, which is made current."""
    check(cuda.cuInit(0))
    if load().platform == "cuda":
        context = ctypes.c_void_p()
        check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0))
        check(cuda.cuCtxSetCurrent(context))
    prop = cuda.CUmemAllocationProp()
    prop.type = cuda.CU_MEM_ALLOCATION_TYPE_PINNED
    prop.requestedHandleTypes = cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    prop.location = cuda.CUmemLocation(cuda.CU_MEM_LOCATION_TYPE_DEVICE, 0)
    return prop


def mapped(handle: Any) -> ctypes.c_uint64:
    address = ctypes.c_uint64()
    check(cuda.cuMemAddressReserve(ctypes.byref(address), SIZE, 0, 0, 0))
    check(cuda.cuMemMap(address, SIZE, 0, handle, 0))
    location = cuda.CUmemLocation(cuda.CU_MEM_LOCATION_TYPE_DEVICE, 0)
    access = cuda.CUmemAccessDesc(location, cuda.CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
    check(cuda.cuMemSetAccess(address, SIZE, ctypes.byref(access), 1))
    return address


def unmapped(address: Any, handle: Any) -> None:
    check(cuda.cuMemUnmap(address, SIZE))
    check(cuda.cuMemRelease(handle))
    check(cuda.cuMemAddressFree(address, SIZE))


def memory_as_in_cuda() -> None:
    prop = prepared()
    least = ctypes.c_size_t()
    minimum = cuda.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    check(cuda.cuMemGetAllocationGranularity(ctypes.byref(least), ctypes.byref(prop), minimum))
    assert SIZE % least.value == 0
    handle, again, fd = ctypes.c_uint64(), ctypes.c_uint64(), ctypes.c_int(-1)
    check(cuda.cuMemCreate(ctypes.byref(handle), SIZE, ctypes.byref(prop), 0))
    kind = cuda.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    check(cuda.cuMemExportToShareableHandle(ctypes.byref(fd), handle, kind, 0))
    # As in C: the descriptor by value, where a pointer is declared.
    check(cuda.cuMemImportFromShareableHandle(ctypes.byref(again), ctypes.c_void_p(fd.value), kind))
    os.close(fd.value)
    one, other = mapped(handle), mapped(again)
    check(cuda.cuMemsetD8(one, 7, SIZE))
    text = ctypes.create_string_buffer(b"from the host")
    check(cuda.cuMemcpy(one, ctypes.addressof(text), len(text)))
    stream = ctypes.c_uint64()
    check(cuda.cuStreamCreate(ctypes.byref(stream), cuda.CU_STREAM_NON_BLOCKING))
    read = ctypes.create_string_buffer(len(text) + 1)
    check(cuda.cuMemcpyAsync(ctypes.addressof(read), other, len(read), stream))
    check(cuda.cuStreamSynchronize(stream))
    assert read.raw == text.raw + b"\x07"
    check(cuda.cuStreamDestroy(stream))
    start, size = ctypes.c_uint64(), ctypes.c_size_t()
    inside = one.value + 4096
    check(cuda.cuMemGetAddressRange(ctypes.byref(start), ctypes.byref(size), inside))
    assert (start.value, size.value) == (one.value, SIZE)
    unmapped(one, handle)
    unmapped(other, again)


def devices_as_in_cuda() -> None:
    prepared()
    count, name, value = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_int()
    check(cuda.cuDeviceGetCount(ctypes.byref(count)))
    seen = gpu.devices()
    assert count.value == len(seen)
    check(cuda.cuDeviceGetName(name, len(name), 0))
    assert name.value.decode() == seen[0].name
    for attribute, told in (
        (cuda.CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, seen[0].vmm),
        (cuda.CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED, seen[0].dmabuf),
    ):
        if told is not None:
            check(cuda.cuDeviceGetAttribute(ctypes.byref(value), attribute, 0))
            assert bool(value.value) == told


def errors_as_in_cuda() -> list[str]:
    prepared()
    code = cuda.cuMemRelease(0xDEAD0)
    assert code > 0
    library = load()
    if library.platform == "rocm":  # who asks next is not told of it
        assert ctypes.CDLL(library.path("gpu")).hipGetLastError() == 0
    texts = []
    for function in (cuda.cuGetErrorName, cuda.cuGetErrorString):
        text = ctypes.c_char_p()
        check(function(code, ctypes.byref(text)))
        assert text.value
        texts.append(text.value.decode())
    return texts


def names_as_in_cuda() -> dict[str, str]:
    """What each name of CUDA is here; empty for none."""
    told = {}
    for name in cuda.names():
        if cuda.has(name):
            told[name] = cuda.translate(name)
            assert callable(getattr(cuda, name))
        else:
            told[name] = ""
            with pytest.raises(GpuUnsupported):
                getattr(cuda, name)
    with pytest.raises(UsageError, match="cuLaunchKernel"):
        cuda.translate("cuLaunchKernel")
    for name in ("cuLaunchKernel", "anything", "__path__"):
        assert not hasattr(cuda, name)
    assert not cuda.has("cuLaunchKernel")
    assert gpu.compat is cuda
    return told

"""The emulated libraries by ctypes: what the programs of these tests call, in child processes."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from ctypes import POINTER, byref, c_char_p, c_int, c_size_t, c_uint64, c_ulonglong, c_void_p
from typing import Any

UNIT = 2 << 20
# CUDA's headers give these calls under a later name.
_SECOND_VERSIONS = {
    "CtxPopCurrent",
    "CtxPushCurrent",
    "DevicePrimaryCtxRelease",
    "DeviceTotalMem",
    "MemGetAddressRange",
    "MemGetInfo",
    "MemcpyDtoH",
    "MemcpyHtoD",
    "MemsetD8",
    "StreamDestroy",
}
NOT_READY = 600


class Properties(ctypes.Structure):
    """hipMemAllocationProp, CUmemAllocationProp."""

    _fields_ = (
        ("type", c_int),
        ("handle_types", c_int),
        ("location_type", c_int),
        ("location_id", c_int),
        ("win32", c_void_p),
        ("flags", ctypes.c_ubyte * 8),
    )


class Access(ctypes.Structure):
    """hipMemAccessDesc, CUmemAccessDesc."""

    _fields_ = (("location_type", c_int), ("location_id", c_int), ("flags", c_int))


class Alive(ctypes.Structure):
    _fields_ = tuple(
        (name, c_uint64) for name in ("allocations", "mappings", "reservations", "streams")
    )


class Failed(Exception):
    """A call did not return 0."""

    def __init__(self, call: str, status: int) -> None:
        super().__init__(f"{call} returned {status}")
        self.status = status


def _argument(value: Any) -> Any:
    """Numbers that may be addresses or handles as 64 bits; an int would be cut to 32."""
    return c_uint64(value) if isinstance(value, int) else value


class Gpu:
    """libamdhip64 or libcuda: the calls that both have, by the rest of their names."""

    def __init__(self, platform: str = "hip", library: str | None = None) -> None:
        self.platform = platform
        self.cuda = platform == "cuda"
        default = "libcuda.so.1" if self.cuda else "libamdhip64.so.7"
        self.library = ctypes.CDLL(library or default)
        self.ok("Init", 0)
        if self.cuda:
            context = c_void_p()
            self.ok("DevicePrimaryCtxRetain", byref(context), 0)
            self.ok("CtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> int:
        """``call("MemCreate", …)`` is hipMemCreate or cuMemCreate; its status."""
        symbol = f"hip{name}"
        if self.cuda:
            symbol = f"cu{name}{'_v2' if name in _SECOND_VERSIONS else ''}"
        return int(getattr(self.library, symbol)(*map(_argument, arguments)))

    def ok(self, name: str, *arguments: Any) -> None:
        status = self.call(name, *arguments)
        if status:
            raise Failed(name, status)

    def create(self, size: int = UNIT, device: int = 0, shareable: bool = True) -> int:
        handle = c_uint64()
        properties = Properties(1, int(shareable), 1, device)
        self.ok("MemCreate", byref(handle), size, byref(properties), 0)
        return handle.value

    def reserve(self, size: int, alignment: int = 0) -> int:
        address = c_uint64()
        self.ok("MemAddressReserve", byref(address), size, alignment, 0, 0)
        return address.value

    def map(self, address: int, size: int, handle: int) -> None:
        self.ok("MemMap", address, size, 0, handle, 0)

    def unlock(self, address: int, size: int, flags: int = 3, device: int = 0) -> None:
        self.ok("MemSetAccess", address, size, byref(Access(1, device, flags)), 1)

    def export(self, handle: int) -> int:
        fd = c_int(-1)
        self.ok("MemExportToShareableHandle", byref(fd), handle, 1, 0)
        return fd.value

    def adopt(self, fd: int, by_pointer: bool = False) -> int:
        """Imports a descriptor."""
        handle = c_uint64()
        argument = byref(c_int(fd)) if by_pointer else fd
        self.ok("MemImportFromShareableHandle", byref(handle), argument, 1)
        return handle.value

    @contextlib.contextmanager
    def memory(self, size: int = UNIT, device: int = 0) -> Iterator[int]:
        """The address of device memory that may be read and written."""
        handle, address = self.create(size, device), self.reserve(size)
        self.map(address, size, handle)
        self.unlock(address, size, device=device)
        self.ok("MemRelease", handle)
        yield address
        self.ok("MemUnmap", address, size)
        self.ok("MemAddressFree", address, size)

    def stream(self) -> int:
        made = c_uint64()
        self.ok("StreamCreate" if self.cuda else "StreamCreateWithFlags", byref(made), 1)
        return made.value

    def alive(self) -> dict[str, int]:
        found = Alive()
        self.library.slurmmesh_emulator_alive(byref(found))
        return {name: getattr(found, name) for name, _ in Alive._fields_}


def peek(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def poke(address: int, data: bytes) -> None:
    ctypes.memmove(address, data, len(data))


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


__all__ = [
    "NOT_READY",
    "POINTER",
    "UNIT",
    "Access",
    "Failed",
    "Gpu",
    "Properties",
    "byref",
    "c_char_p",
    "c_int",
    "c_size_t",
    "c_uint64",
    "c_ulonglong",
    "c_void_p",
    "open_files",
    "peek",
    "poke",
]

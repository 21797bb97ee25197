"""A rank of an emulated communicator by ctypes, for the programs of these tests."""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p
from typing import Any

from tests.emulator.face import NOT_READY, UNIT, Gpu

IN_PROGRESS = 7
REMOTE_ERROR = 6
INVALID_USAGE = 5
INVALID_ARGUMENT = 4
SUM, PROD, MAX, MIN, AVG = range(5)
FLOAT, DOUBLE, INT, BYTE = 7, 8, 2, 1


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_char * 128),)


class Config(ctypes.Structure):
    """The beginning of ncclConfig_t."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", c_int),
    )


class Ccl:
    """librccl or libnccl."""

    def __init__(self, platform: str = "hip") -> None:
        self.library = ctypes.CDLL("libnccl.so.2" if platform == "cuda" else "librccl.so.1")
        self.library.ncclGetLastError.restype = c_char_p
        self.library.ncclGetErrorString.restype = c_char_p

    def call(self, name: str, *arguments: Any) -> int:
        """``call("AllReduce", …)`` is ncclAllReduce; communicators and addresses are c_void_p."""
        return int(getattr(self.library, "nccl" + name)(*arguments))

    def ok(self, name: str, *arguments: Any) -> None:
        result = self.call(name, *arguments)
        assert result == 0, (name, result, self.last_error())

    def last_error(self, comm: c_void_p | None = None) -> str:
        return str(self.library.ncclGetLastError(comm).decode())

    def unique_id(self) -> bytes:
        made = UniqueId()
        self.ok("GetUniqueId", byref(made))
        return bytes(made)

    def none_left(self) -> None:
        """Waits for threads of streams to let go of communicators that were destroyed."""
        count = self.library.slurmmesh_emulator_communicators
        count.restype = c_uint64
        while count():
            time.sleep(0.001)


def config(blocking: bool) -> Config:
    return Config(ctypes.sizeof(Config), 0xCAFEBEEF, 21400, int(blocking))


class Rank:
    """A device, a stream and a communicator. Rank 0 makes the unique id and prints it."""

    def __init__(
        self, rank: int, size: int, unique_id: str, platform: str = "hip", blocking: bool = True
    ) -> None:
        self.rank, self.size = rank, size
        self.gpu = Gpu(platform)
        self.ccl = Ccl(platform)
        self.stream = c_void_p(self.gpu.stream())
        if not unique_id:
            unique_id = self.ccl.unique_id().hex()
            print(unique_id, flush=True)
        self.comm = c_void_p()
        raw = UniqueId.from_buffer_copy(bytes.fromhex(unique_id))
        if blocking:
            self.ccl.ok("CommInitRank", byref(self.comm), size, raw, rank)
        else:
            started = self.ccl.call(
                "CommInitRankConfig", byref(self.comm), size, raw, rank, byref(config(False))
            )
            assert started == IN_PROGRESS

    @contextmanager
    def array(self, kind: Any, values: list[Any]) -> Iterator[Any]:
        """A ctypes array in device memory; ``at(array)`` is its address."""
        made = kind * len(values)
        size = -(-ctypes.sizeof(made) // UNIT) * UNIT
        with self.gpu.memory(size) as address:
            array = made.from_address(address)
            array[:] = values
            yield array

    def async_error(self, comm: c_void_p | None = None) -> int:
        result = c_int(-1)
        self.ccl.ok("CommGetAsyncError", comm or self.comm, byref(result))
        return result.value

    def settled(self, comm: c_void_p | None = None) -> int:
        """Polls until nothing is in progress any more."""
        while (result := self.async_error(comm)) == IN_PROGRESS:
            time.sleep(0.001)
        return result

    def wait(self) -> None:
        self.gpu.ok("StreamSynchronize", self.stream)

    def busy(self) -> bool:
        status = self.gpu.call("StreamQuery", self.stream)
        assert status in (0, NOT_READY)
        return status == NOT_READY

    def failure(self) -> tuple[int, str]:
        """Waits for an error of what runs, as a watchdog does; the result and its text."""
        while (result := self.async_error()) == 0:
            assert self.busy(), "it ended without an error"
            time.sleep(0.001)
        assert self.busy(), "what has failed runs until it is aborted"
        return result, self.ccl.last_error(self.comm)

    def close(self) -> None:
        self.ccl.ok("CommFinalize", self.comm)
        self.ccl.ok("CommDestroy", self.comm)
        self.ccl.none_left()
        self.gpu.ok("StreamDestroy", self.stream)


def at(array: Any, index: int = 0) -> c_void_p:
    """The address of an element."""
    return c_void_p(ctypes.addressof(array) + index * ctypes.sizeof(array._type_))


def say(text: str) -> None:
    print(text, flush=True)


def hear() -> str:
    """The next line of the test; empty once it has closed the pipe."""
    return sys.stdin.readline().strip()

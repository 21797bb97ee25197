"""What the tests of device memory run, each in a process of its own, on each GPU in turn."""

from __future__ import annotations

import contextlib
import copy
import ctypes
import functools
import gc
import os
import pickle
import signal
import struct
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

from slurmmesh import gpu
from slurmmesh.errors import (
    GpuForked,
    GpuUnavailable,
    GpuUnsupported,
    UsageError,
)
from slurmmesh.gpu import DeviceMemory
from slurmmesh.gpu.library import Library
from tests.gpu.alive import alive
from tests.gpu.forkserver import ends_wholly

UNIT = 2 << 20


def leaves_nothing(program: Callable[..., Any]) -> Callable[..., Any]:
    """What is alive after it is what was alive before."""

    @functools.wraps(program)
    def checked(*arguments: Any) -> Any:
        with contextlib.suppress(GpuUnsupported):
            DeviceMemory.reserve(UNIT).free()  # what the libraries open at first, they keep
        before = alive()
        answer = program(*arguments)
        assert alive() == before
        return answer

    return checked


# ------------------------------------------------------------------ platform and devices


def tell_platform() -> dict[str, Any]:
    found = gpu.platform()
    assert gpu.platform() == found
    pid = os.fork()  # touches no device: a child can still start
    if pid == 0:
        os._exit(0 if gpu.devices() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    versions = found.versions()
    return {
        "name": found.name,
        "gpu_library": found.gpu_library,
        "runtime": versions.runtime,
        "driver": versions.driver,
        "emulated": found.emulated,
        "describe": found.describe(),
    }


def tell_devices() -> list[list[Any]]:
    seen = gpu.devices()
    assert gpu.devices() is seen
    assert [device.index for device in seen] == list(range(len(seen)))
    assert len({device.uuid for device in seen}) == len({d.pci_address for d in seen}) == len(seen)
    return [[d.name, d.uuid, d.memory_bytes, d.vmm, d.rdma, d.dmabuf] for d in seen]


def tell_none() -> list[str]:
    found = gpu.platform()
    assert found.name == "none"
    assert found.versions() == type(found.versions())()
    with pytest.raises(GpuUnavailable) as raised:
        gpu.devices()
    return [found.reason, str(raised.value)]


def no_device() -> list[str]:
    assert gpu.platform().name != "none"
    said = []
    for use in (gpu.devices, lambda: DeviceMemory.reserve(1)):
        with pytest.raises(GpuUnavailable) as raised:
            use()
        said.append(str(raised.value))
    return said


@leaves_nothing
def too_old() -> str:
    with pytest.raises(GpuUnsupported) as raised:
        DeviceMemory.reserve(1)
    return str(raised.value)


@leaves_nothing
def cannot_share() -> str:
    with DeviceMemory.reserve(UNIT) as memory:
        memory.fill(1)
        said = []
        for use in (memory.export, memory.dmabuf):
            with pytest.raises(GpuUnsupported) as raised:
                use()
            said.append(str(raised.value))
        return "\n".join(said)


# ------------------------------------------------------------------ sizes and contents


@leaves_nothing
def sizes() -> None:
    with DeviceMemory.reserve(1, capacity=3 * UNIT + 1) as memory:
        assert (memory.size, memory.capacity) == (UNIT, 4 * UNIT)
        address = memory.address
        memory.fill(0)
        memory.write(b"first", 10)
        tensor = memory.tensor()
        assert memory.grow(UNIT) == memory.grow(5) == UNIT
        assert memory.grow(UNIT + 1) == memory.size == 2 * UNIT
        assert memory.grow(4 * UNIT) == 4 * UNIT
        assert [(e.offset, e.size) for e in memory.extents] == [
            (0, UNIT),
            (UNIT, UNIT),
            (2 * UNIT, 2 * UNIT),
        ]
        assert memory.address == address
        assert bytes(tensor[10:15].tolist()) == b"first"
        memory.write(b"across", 2 * UNIT - 3)
        assert memory.read(6, 2 * UNIT - 3) == b"across"
        assert len(memory.read()) == 4 * UNIT
        memory.fill(9, 2 * UNIT + 2, UNIT - 1)
        assert memory.read(2 * UNIT + 4, UNIT - 2) == b"\0" + b"\t" * (2 * UNIT + 2) + b"\0"
        memory.write(bytes(range(256)) * (UNIT // 64))
        assert memory.read() == bytes(range(256)) * (UNIT // 64)
        with pytest.raises(UsageError, match=f"capacity, {4 * UNIT}"):
            memory.grow(4 * UNIT + 1)


@leaves_nothing
def contents() -> None:
    with DeviceMemory.reserve(UNIT) as memory:
        memory.fill(7)
        assert memory.read() == b"\7" * UNIT
        memory.fill(255, 3, 5)
        assert memory.read(5, 4) == b"\7\xff\xff\xff\7"
        memory.write(memoryview(bytearray(b"abc")), UNIT - 3)
        memory.write(b"")
        memory.fill(0, 0)
        assert memory.read(3, UNIT - 3) == b"abc"
        assert memory.read(0) == memory.read(offset=UNIT) == b""
        for outside in (
            lambda: memory.read(UNIT + 1),
            lambda: memory.read(1, UNIT),
            lambda: memory.read(1, -1),
            lambda: memory.read(-1),
            lambda: memory.write(b"ab", UNIT - 1),
            lambda: memory.fill(0, 2, UNIT - 1),
            lambda: memory.dmabuf(0, UNIT + 1),
            lambda: memory.read(0, 1 << 70),
        ):
            with pytest.raises(UsageError, match=f"not within {UNIT}"):
                outside()
        for broken in (
            lambda: memory.read(1.5),  # type: ignore[arg-type]
            lambda: memory.read(1, "2"),  # type: ignore[arg-type]
            lambda: memory.write(b"a", 1.0),  # type: ignore[arg-type]
            lambda: memory.fill(0, 1, None),  # type: ignore[arg-type]
            lambda: memory.dmabuf(1.5, 2),  # type: ignore[arg-type]
        ):
            with pytest.raises(UsageError, match="whole numbers"):
                broken()
        for no_bytes in ("text", 5, memoryview(b"abcd")[::2]):
            with pytest.raises(UsageError, match="no bytes"):
                memory.write(no_bytes)
        for no_byte in (256, -1, 1.0, b"a"):
            with pytest.raises(UsageError, match="no byte"):
                memory.fill(no_byte)  # type: ignore[arg-type]


@leaves_nothing
def refused_sizes() -> None:
    for size, capacity in (
        (0, None),
        (-1, None),
        (1.5, None),
        ("1", None),
        (True, None),
        (1, 1 << 64),
    ):
        with pytest.raises(UsageError, match="1 byte or more"):
            DeviceMemory.reserve(size, capacity=capacity)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="less than the size"):
        DeviceMemory.reserve(2, capacity=1)
    for device in (len(gpu.devices()), -1, "0"):
        with pytest.raises(UsageError, match="there is no device"):
            DeviceMemory.reserve(1, device=device)  # type: ignore[arg-type]


# ------------------------------------------------------------------ tensors


@leaves_nothing
def tensors() -> None:
    memory = DeviceMemory.reserve(UNIT, capacity=2 * UNIT)
    memory.fill(0)
    floats = memory.tensor("float32", (3, 4), offset=64)
    where = "cpu" if gpu.platform().emulated else "cuda"
    assert (floats.device.type, floats.dtype, floats.shape) == (where, torch.float32, (3, 4))
    assert floats.data_ptr() == memory.address + 64
    assert floats.is_contiguous()
    floats += torch.arange(12, dtype=torch.float32, device=floats.device).reshape(3, 4)
    torch.cuda.synchronize() if where == "cuda" else None
    assert struct.unpack("12f", memory.read(48, 64)) == tuple(range(12))
    memory.write(struct.pack("f", -1.0), 64)
    assert floats[0, 0].item() == -1.0
    assert memory.tensor().shape == (UNIT,)
    assert memory.tensor(torch.int64, offset=8).shape == (UNIT // 8 - 1,)
    assert memory.tensor("bool", ()).shape == ()
    assert memory.tensor("uint8", (0, 5), UNIT).numel() == 0
    assert memory.tensor(torch.bfloat16, [2, 2]).dtype == torch.bfloat16
    assert memory.tensor(torch.float8_e4m3fn, (4,)).dtype == torch.float8_e4m3fn
    for dtype, shape, offset, said in (
        ("float32", None, 2, "multiple of 4"),
        ("uint8", None, UNIT + 1, "multiple of 1"),
        ("uint8", (UNIT + 1,), 0, "grow the memory"),
        ("float64", (UNIT // 8,), 8, "grow the memory"),
        ("uint8", (-1,), 0, "from 0 on"),
        ("uint8", (1,) * 65, 0, "64 sizes"),
        ("uint8", (1.5,), 0, "whole numbers"),
        ("uint8", 5, 0, "sequence of sizes"),
        ("uint8", None, "1", "whole numbers"),
        ("uint8", (0, 1 << 62, 2), 0, "no tensor has sizes"),
        ("int7", None, 0, "float8_e5m2"),
        (torch.qint8, None, 0, "no tensor can be of type"),
    ):
        with pytest.raises(UsageError, match=said):
            memory.tensor(dtype, shape, offset)
    gc.collect()
    assert memory.tensors == 1


@leaves_nothing
def every_type() -> None:
    from slurmmesh.gpu.dlpack import ELEMENTS

    with DeviceMemory.reserve(UNIT) as memory:
        for name, element in ELEMENTS.items():
            kind = getattr(torch, name)
            tensor = memory.tensor(name, (2,))
            assert tensor.dtype is kind is memory.tensor(kind, (2,)).dtype
            assert tensor.element_size() == element.bytes


@leaves_nothing
def tensors_keep_it() -> None:
    """The memory is given back with the last tensor, whoever goes first."""
    idle = alive()
    memory = DeviceMemory.reserve(UNIT)
    first, second = memory.tensor(), memory.tensor("int32", (4,))
    used = alive()
    first.fill_(1)
    assert memory.tensors == 2
    memory.free()
    memory.free()
    assert memory.freed
    assert memory.tensors == 0
    assert alive() == used
    assert first[5].item() == 1
    view = second[1:].reshape(3, 1)
    del first, second
    assert alive() == used
    assert view[2].item() == 0x01010101
    del view
    assert alive() == idle
    # Without free(): the same.
    memory = DeviceMemory.reserve(UNIT)
    tensor = memory.tensor()
    del memory
    assert alive() == used
    tensor.zero_()
    # By a thread that knows nothing of this.
    holder = [tensor]
    del tensor
    thread = threading.Thread(target=holder.clear)
    thread.start()
    thread.join()
    assert alive() == idle


@leaves_nothing
def capsules() -> None:
    memory = DeviceMemory.reserve(UNIT)
    memory.fill(3)
    assert torch.from_dlpack(memory)[4].item() == 3
    # As others declare it who make capsules by ctypes; and they do so for the whole process.
    ctypes.pythonapi.PyCapsule_New.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    unused = memory.__dlpack__(stream=None, max_version=(1, 0))
    assert memory.tensors == 1
    with pytest.raises(ZeroDivisionError):
        _fail_with(memory.__dlpack__())  # it ends while an exception is under way
    assert memory.tensors == 1
    memory.free()
    del unused
    with pytest.raises(UsageError, match="was freed"):
        memory.__dlpack__()
    memory = DeviceMemory.reserve(UNIT)
    for refused in ({"copy": True}, {"dl_device": (2, 9)}):
        with pytest.raises(BufferError):
            memory.__dlpack__(**refused)
    told = memory.__cuda_array_interface__
    assert told["data"] == (memory.address, False)
    assert told["shape"] == (UNIT,)
    assert memory.__dlpack__(dl_device=memory.__dlpack_device__(), copy=False)
    memory.free()


def _fail_with(capsule: Any) -> None:
    assert capsule is not None
    _ = 1 / 0


# ------------------------------------------------------------------ its end


@leaves_nothing
def after_free() -> None:
    with DeviceMemory.reserve(UNIT) as memory:
        assert "2097152 of 2097152 bytes at 0x" in repr(memory)
    for use in (
        memory.read,
        memory.export,
        memory.tensor,
        memory.dmabuf,
        lambda: memory.write(b"1"),
        lambda: memory.fill(1),
        lambda: memory.grow(UNIT),
        lambda: memory.allow(0),
        lambda: memory.__cuda_array_interface__,
    ):
        with pytest.raises(UsageError, match="was freed"):
            use()
    assert repr(memory) == "<DeviceMemory of device 0, freed>"
    memory = DeviceMemory.reserve(UNIT)
    for travel in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(UsageError, match="export"):
            travel(memory)
    cycle: list[Any] = [memory]
    cycle.append(cycle)


@ends_wholly
def at_exit() -> None:
    """The interpreter ends with all of it alive, and with calls recorded."""
    global _kept
    ended = Library.call

    def call(self: Library, name: str, *arguments: Any) -> None:
        ended(self, name, *arguments)
        if name == "sm_owner_drop":
            os.write(1, b"dropped\n")

    Library.call = call  # type: ignore[method-assign]
    memory = DeviceMemory.reserve(UNIT)
    other = DeviceMemory.reserve(UNIT)
    _kept = (memory, other, other.tensor(), other.__dlpack__(), memory.export())


@leaves_nothing
def forked() -> None:
    memory = DeviceMemory.reserve(UNIT, capacity=2 * UNIT)
    memory.write(b"parent")
    tensor = memory.tensor()
    locked, release = threading.Event(), threading.Event()

    def hold() -> None:
        with memory._usable():
            locked.set()
            release.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    locked.wait(60)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _in_child(memory)
            del tensor, memory
            gc.collect()
            code = 0
        finally:
            os._exit(code)
    release.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert memory.read(6) == b"parent"
    assert memory.grow(2 * UNIT) == 2 * UNIT


def _in_child(memory: DeviceMemory) -> None:
    signal.alarm(60)
    for use in (
        gpu.devices,
        memory.read,
        memory.export,
        memory.tensor,
        lambda: memory.grow(2 * UNIT),
        lambda: DeviceMemory.reserve(UNIT),
    ):
        with pytest.raises(GpuForked, match="fork"):
            use()
    memory.free()
    memory.free()

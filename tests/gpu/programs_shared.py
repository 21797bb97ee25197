"""What the tests of device memory run, where it fails, and where several use it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from slurmmesh import gpu
from slurmmesh.errors import (
    DeviceOutOfMemory,
    FrameError,
    GpuError,
    GpuUnsupported,
    LinkClosed,
    UsageError,
)
from slurmmesh.gpu import DeviceMemory, ExportedMemory
from slurmmesh.gpu.library import Library, load
from tests.gpu.alive import alive
from tests.gpu.cycles import run as run_cycles
from tests.gpu.programs import UNIT, leaves_nothing

# ------------------------------------------------------------------ failures in the middle


class _Broken(GpuError):
    """Made by the test."""


@contextlib.contextmanager
def failing_at(number: int, error: BaseException, *, late: bool = False) -> Iterator[list[str]]:
    """The bridge's call with this number, from 0, fails; yields the names of those made.

    ``late``: the library has done it, as if an interrupt came meanwhile.
    """
    made: list[str] = []
    real = Library.call

    def call(self: Library, name: str, *arguments: Any) -> None:
        made.append(name)
        due = len(made) == number + 1
        if due and not late:
            raise error
        real(self, name, *arguments)
        if due:
            raise error

    Library.call = call  # type: ignore[method-assign]
    try:
        yield made
    finally:
        Library.call = real  # type: ignore[method-assign]


@leaves_nothing
def failures() -> dict[str, list[str]]:
    """Each step of each operation fails in turn: nothing is left, and nothing has changed."""
    steps = {}
    for error in (_Broken("no more"), KeyboardInterrupt()):
        steps["reserve"] = _fail_each(lambda: DeviceMemory.reserve(UNIT).free(), error)
        with DeviceMemory.reserve(UNIT, capacity=4 * UNIT) as memory:
            memory.fill(5)
            steps["grow"] = _fail_to_grow(memory, error)
            steps["export"] = _fail_each(lambda: memory.export().close(), error)
            steps["tensor"] = _fail_each(memory.tensor, error)
            with memory.export() as exported:
                steps["import"] = _fail_each(lambda: DeviceMemory.import_(exported).free(), error)
    return steps


def _fail_each(act: Callable[[], Any], error: BaseException) -> list[str]:
    """All calls that it makes fail, one at a time; returns their names."""
    with failing_at(-1, error) as names:
        act()
    for number, name in enumerate(names):
        if not _can_fail(name, error):
            continue
        interrupted = isinstance(error, KeyboardInterrupt) and name.startswith("sm_memory_")
        for late in {False, interrupted}:
            before = alive()
            with failing_at(number, error, late=late), pytest.raises(type(error)):
                act()
            assert alive() == before, (name, late)
    return names


def _can_fail(name: str, error: BaseException) -> bool:
    """Not what frees, and no interrupt of what hands over to the owner (see Range)."""
    interrupted = isinstance(error, KeyboardInterrupt)
    return name != "sm_owner_drop" and not (interrupted and name == "sm_owner_add")


def _fail_to_grow(memory: DeviceMemory, error: BaseException) -> list[str]:
    with DeviceMemory.reserve(UNIT, capacity=4 * UNIT) as other, failing_at(-1, error) as names:
        other.grow(3 * UNIT)
    tensor = memory.tensor()
    for number, name in enumerate(names):
        if not _can_fail(name, error):
            continue
        before = alive(), memory.extents
        with failing_at(number, error), pytest.raises(type(error)):
            memory.grow(3 * UNIT)
        assert (alive(), memory.extents) == before, name
        assert memory.read() == b"\5" * UNIT
    assert memory.grow(3 * UNIT) == 3 * UNIT
    memory.fill(6, offset=UNIT)
    assert tensor.sum().item() == 5 * UNIT
    return names


@leaves_nothing
def out_of_memory(limit: int) -> list[str]:
    """Of a device that has room for ``limit`` units."""
    said = []
    with pytest.raises(DeviceOutOfMemory) as raised:
        DeviceMemory.reserve((limit + 1) * UNIT)
    said.append(str(raised.value))
    memory = DeviceMemory.reserve(UNIT, capacity=2 * limit * UNIT)
    memory.fill(9)
    with pytest.raises(DeviceOutOfMemory) as raised:
        memory.grow((limit + 1) * UNIT)
    said.append(str(raised.value))
    assert memory.read() == b"\t" * UNIT
    assert memory.grow(limit * UNIT) == limit * UNIT
    memory.free()
    DeviceMemory.reserve(limit * UNIT).free()
    return said


# ------------------------------------------------------------------ other devices, NICs


@leaves_nothing
def two_devices() -> None:
    with DeviceMemory.reserve(UNIT, capacity=3 * UNIT, device=1) as memory:
        assert memory.device == 1
        memory.allow(0)
        memory.allow(0)
        memory.allow(1)
        memory.grow(3 * UNIT)
        memory.write(b"seen", 2 * UNIT)
        assert memory.read(4, 2 * UNIT) == b"seen"
        with pytest.raises(UsageError, match="no device 2"):
            memory.allow(2)
        with memory.export() as exported:
            assert exported.description.device == gpu.devices()[1].uuid
            with DeviceMemory.import_(exported) as same:
                assert same.device == 1
                assert _device_of(same.address) == 1  # though the thread's own is another
            with DeviceMemory.import_(exported, device=0) as other:
                assert other.device == 0
                assert other.read(4, 2 * UNIT) == b"seen"


@leaves_nothing
def partitions() -> None:
    """Two devices with one uuid: which is meant must be said."""
    first, second = gpu.devices()
    assert first.uuid == second.uuid
    with DeviceMemory.reserve(UNIT, device=1) as memory, memory.export() as exported:
        with pytest.raises(UsageError, match=f"devices 0, 1 are all {first.uuid}"):
            DeviceMemory.import_(exported)
        DeviceMemory.import_(exported, device=1).free()


def _device_of(address: int) -> int:
    library = load()
    kind = library.ffi.new("int *")
    device = library.ask("sm_pointer_kind", address, kind)
    assert kind[0] == library.lib.SM_POINTER_DEVICE
    return device


@leaves_nothing
def dmabufs() -> list[int]:
    """Descriptors of ranges; returns the offsets. The emulator's can be looked at as files."""
    with DeviceMemory.reserve(UNIT, capacity=4 * UNIT, rdma=True) as memory:
        assert memory.rdma
        memory.grow(3 * UNIT)
        memory.write(b"for a NIC", UNIT + 5)
        offsets = []
        for offset, size in ((0, UNIT), (0, 10), (UNIT, 2 * UNIT), (UNIT + 5, 9)):
            with memory.dmabuf(offset, size) as buffer:
                assert buffer.size == size
                assert not os.get_inheritable(buffer.fd)
                offsets.append(buffer.offset)
                if gpu.platform().emulated and offset > UNIT:
                    assert os.pread(buffer.fd, 9, buffer.offset) == b"for a NIC"
        with pytest.raises(UsageError, match=f"0 to {UNIT}, {UNIT} to {3 * UNIT}"):
            memory.dmabuf(UNIT - 1, 2)
        with pytest.raises(UsageError, match="not within one extent"):
            memory.dmabuf()
        return offsets


@leaves_nothing
def dmabufs_of_others() -> None:
    """Of memory that HIP itself allocated, as torch's is."""
    library = load()
    hip, address = ctypes.CDLL(library.path("gpu")), ctypes.c_uint64()
    assert hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(2 * UNIT)) == 0
    where = address.value + UNIT
    library.call("sm_memory_fill", 0, where, 7, 4096)
    fd, offset = library.ffi.new("int *"), library.ffi.new("uint64_t *")
    library.call("sm_memory_dmabuf_fd", where, 4096, fd, offset)
    assert offset[0] == UNIT
    if not os.path.exists("/dev/udmabuf"):  # else a real dma-buf, which cannot be read so
        assert os.pread(fd[0], 4096, offset[0]) == b"\7" * 4096
    os.close(fd[0])
    for wrong in (where - UNIT, where):
        with pytest.raises((UsageError, GpuError)):
            library.call("sm_memory_dmabuf_fd", wrong, 2 * UNIT + 4096, fd, offset)
    assert hip.hipFree(address) == 0


@leaves_nothing
def no_dmabuf() -> str:
    with DeviceMemory.reserve(UNIT) as memory:
        with pytest.raises(GpuUnsupported) as raised:
            memory.dmabuf()
        return str(raised.value)


# ------------------------------------------------------------------ threads


@leaves_nothing
def threads() -> None:
    memory = DeviceMemory.reserve(UNIT, capacity=32 * UNIT)
    barrier = threading.Barrier(8)
    failed: list[BaseException] = []

    def work(number: int) -> None:
        try:
            barrier.wait(60)
            for step in range(4):
                memory.grow((number + 8 * step) % 32 * UNIT + 1)
                memory.write(bytes([number]) * 100, number * 100)
                tensor = memory.tensor("uint8", (100,), number * 100)
                with memory.export() as exported, DeviceMemory.import_(exported) as other:
                    assert other.read(100, number * 100) == bytes([number]) * 100
                assert tensor.tolist() == [number] * 100
            barrier.wait(60)
            with contextlib.suppress(UsageError):
                memory.free() if number == 3 else memory.read(100)
        except BaseException as error:
            failed.append(error)
            barrier.abort()

    running = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not failed, failed
    assert memory.freed


@leaves_nothing
def cycles(number: int) -> list[dict[str, Any]]:
    """What is alive after each twentieth of so many cycles."""
    return list(run_cycles(number))


# ------------------------------------------------------------------ descriptors


@leaves_nothing
def exported_again() -> None:
    """Each export has descriptors of its own, whether or not those before it were closed."""
    with DeviceMemory.reserve(UNIT) as memory:
        memory.write(b"shared")
        for _ in range(3):
            with memory.export() as first, memory.export() as second:
                assert first.fds != second.fds
                with DeviceMemory.import_(first) as one, DeviceMemory.import_(second) as other:
                    first.close()
                    assert one.read(6) == other.read(6) == b"shared"
        others = [os.dup(0) for _ in range(8)]  # of the numbers that were closed
    for fd in others:
        os.close(fd)  # it fails if the library has done so


@leaves_nothing
def imported_exports() -> None:
    with (
        DeviceMemory.reserve(UNIT) as memory,
        memory.export() as exported,
        DeviceMemory.import_(exported) as other,
    ):
        if gpu.platform().name == "rocm":
            for use in (other.export, other.dmabuf):
                with pytest.raises(GpuUnsupported, match="export it where it was made"):
                    use()
        else:
            with other.export() as again, DeviceMemory.import_(again) as third:
                third.write(b"third")
                assert memory.read(5) == b"third"


@leaves_nothing
def no_more_files() -> str:
    """ROCm says out of memory where it finds no descriptor for an extent."""
    memory = DeviceMemory.reserve(UNIT, capacity=2 * UNIT)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, limits[1]))
    files = []
    try:
        with contextlib.suppress(OSError):
            while True:
                files.append(os.dup(0))
        with pytest.raises(DeviceOutOfMemory) as raised:
            memory.grow(2 * UNIT)
    finally:
        for fd in files:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert memory.grow(2 * UNIT) == 2 * UNIT
    memory.free()
    return str(raised.value)


# ------------------------------------------------------------------ two processes


@leaves_nothing
def share(descriptor: int) -> None:
    """The one that has the memory."""
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        memory = DeviceMemory.reserve(UNIT, capacity=4 * UNIT)
        memory.grow(3 * UNIT)
        memory.fill(0)
        memory.write(b"from the first", 2 * UNIT + 7)
        with memory.export() as exported:
            exported.send(peer)
        assert exported.closed
        exported.close()
        with pytest.raises(UsageError, match="closed"):
            exported.send(peer)
        assert peer.recv(1) == b"w"  # written
        assert memory.read(15, 100) == b"from the second"
        tensor = memory.tensor("int32", (2,), UNIT - 4)
        assert tensor.tolist() == [17, 18]
        tensor[1] = 19
        torch.cuda.synchronize() if tensor.is_cuda else None
        memory.free()
        peer.sendall(b"f")  # freed
        assert peer.recv(1) == b"r"  # read


@leaves_nothing
def shared(descriptor: int) -> None:
    """The one that imports it."""
    with socket.socket(fileno=os.dup(descriptor)) as peer:
        with ExportedMemory.receive(peer) as exported:
            assert [os.get_inheritable(fd) for fd in exported.fds] == [False, False]
            memory = DeviceMemory.import_(exported)
        with pytest.raises(UsageError, match="closed"):
            DeviceMemory.import_(exported)
        assert memory.imported
        assert memory.size == memory.capacity == 3 * UNIT
        assert memory.read(14, 2 * UNIT + 7) == b"from the first"
        memory.write(b"from the second", 100)
        tensor = memory.tensor("int32", (2,), UNIT - 4)
        tensor.copy_(torch.tensor([17, 18]))
        torch.cuda.synchronize() if tensor.is_cuda else None
        with pytest.raises(UsageError, match="export and import it again"):
            memory.grow(4 * UNIT)
        peer.sendall(b"w")
        assert peer.recv(1) == b"f"
        assert tensor.tolist() == [17, 19]  # it lives on, though its maker has freed it
        peer.sendall(b"r")
        memory.free()


@leaves_nothing
def refused_exports() -> None:
    with DeviceMemory.reserve(UNIT) as memory, memory.export() as exported:
        other = ExportedMemory(
            gpu.MemoryDescription("metal", exported.description.device, (UNIT,)), (os.dup(0),)
        )
        with other, pytest.raises(UsageError, match="memory of metal"):
            DeviceMemory.import_(other)
        elsewhere = gpu.MemoryDescription(load().platform, "GPU-none", (UNIT,))
        with (
            ExportedMemory(elsewhere, (os.dup(0),)) as other,
            pytest.raises(UsageError, match="GPU-none"),
        ):
            DeviceMemory.import_(other)
        nonsense = ExportedMemory(exported.description, (os.open("/dev/null", os.O_RDONLY),))
        with nonsense, pytest.raises(GpuError, match=r"device 0 .*could not be imported"):
            DeviceMemory.import_(nonsense)
        with pytest.raises(FrameError, match="2 descriptors came for 1"):
            ExportedMemory(exported.description, (os.dup(0), os.dup(0)))
        lone = memory.export()
        del lone
        left, right = socket.socketpair()
        left.close()
        with right, pytest.raises(LinkClosed):
            exported.send(right)

"""Memory of a device that grows in place, and that other processes, tensors and NICs can use."""

from __future__ import annotations

import os
import resource
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from slurmmesh.errors import (
    DeviceBusy,
    DeviceOutOfMemory,
    GpuError,
    GpuForked,
    GpuUnsupported,
    MissingDependencyError,
    UsageError,
)
from slurmmesh.gpu import dlpack
from slurmmesh.gpu.device import Device, device_at, device_with
from slurmmesh.gpu.dmabuf import DmaBuf, dmabuf_of
from slurmmesh.gpu.library import load
from slurmmesh.gpu.ranges import Extent, Range
from slurmmesh.gpu.releasing import release, release_kept
from slurmmesh.gpu.sharing import ExportedMemory, MemoryDescription
from slurmmesh.gpu.waiting import Deadline, seconds_of

FREE_TIMEOUT_S = 60.0
_FEW_FILES = 16  # that ROCm may want for one call
_MOST = 1 << 62


class DeviceMemory:
    """Memory of one device at an address that never changes: by ``reserve`` or ``import_``.

    More addresses can be reserved than there is memory: ``grow`` adds memory behind what is there,
    and tensors of what was there stay valid. Sizes are rounded up to what the device can map;
    ``size`` and ``capacity`` tell the true ones.

    It is freed by ``free()``, at the end of ``with``, with the last reference, and when the
    interpreter exits. Tensors of it (``tensor``, DLPack) keep the memory alive by themselves: then
    it is given back with the last of them. ``__cuda_array_interface__`` keeps alive only this
    object: do not free it while somebody uses the address.

    Any thread may use it. It does not travel by pickle: ``export`` it. In a forked child it cannot
    be used; freeing it there does nothing.

    Attributes:
        device: index of the device that reaches it, among those that this process sees.
        address: of its first byte.
        capacity: bytes of addresses that are reserved, from ``address`` on.
        rdma: made for a NIC to reach.
        imported: made by another process.
    """

    def __init__(self, device: Device, capacity: int, *, rdma: bool, imported: bool) -> None:
        """Only addresses; ``reserve`` and ``import_`` add the memory."""
        release_kept()
        self._library = load()
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._freed = False
        self._device = device
        self.device = device.index
        self.rdma = bool(rdma)
        self.imported = imported
        with self._told(f"{capacity} bytes of addresses could not be reserved"):
            self._unit = self._library.ask("sm_memory_granularity", device.index, int(self.rdma))
            self._range = Range(self._library, device.index, self._round_up(capacity))
        self.address = self._range.address
        self.capacity = self._range.capacity

    # ------------------------------------------------------------------ making and freeing it

    @classmethod
    def reserve(
        cls, size: int, *, capacity: int | None = None, device: int = 0, rdma: bool = False
    ) -> DeviceMemory:
        """New memory. What is in it is not defined.

        Args:
            size: bytes of memory.
            capacity: bytes that it can grow to; ``size`` unless given.
            device: index of the device.
            rdma: for a NIC to reach.

        Raises:
            UsageError: there is no such device, or the sizes make no sense.
            DeviceOutOfMemory: the device has not that much left. Nothing is kept.
            GpuUnavailable: there is no GPU library or no device.
            GpuUnsupported: the library is too old; of HIP, 5.7 is needed.
            GpuForked, GpuError: it failed otherwise. Nothing is kept.
        """
        _check_size(size)
        capacity = size if capacity is None else _check_size(capacity)
        if capacity < size:
            raise UsageError(f"a capacity of {capacity} bytes is less than the size, {size}")
        memory = cls(device_at(device), capacity, rdma=rdma, imported=False)
        with memory._freed_on_failure():
            memory.grow(size)
        return memory

    @classmethod
    def import_(cls, exported: ExportedMemory, *, device: int | None = None) -> DeviceMemory:
        """Memory that another process exported: both see what either writes.

        It lives until both have freed it. It cannot grow here; when it has grown where it was
        made, export and import it again.

        Args:
            exported: stays the caller's, who can close it afterwards.
            device: index of the one that is to reach it; unless given, the one it is memory of.

        Raises:
            UsageError: this process does not see that device, or the export was closed.
            GpuError: the library did not take it. Nothing is kept.
        """
        if not isinstance(exported, ExportedMemory):
            raise UsageError(f"an ExportedMemory is needed, not {exported!r}")
        description = exported.description
        platform = load().platform
        if exported.closed:
            raise UsageError("this export was closed: import memory before that")
        if description.platform != platform:
            raise UsageError(f"{platform} cannot import memory of {description.platform}")
        where = device_with(description.device) if device is None else device_at(device)
        memory = cls(where, sum(description.extents), rdma=description.rdma, imported=True)
        with memory._freed_on_failure(), memory._told("memory could not be imported"):
            for size, fd in zip(description.extents, exported.fds, strict=True):
                memory._range.import_(size, fd)
        return memory

    def free(self, timeout: float = FREE_TIMEOUT_S) -> None:
        """Give the memory back; if tensors of it live, the last of them does. Twice is once.

        Waits until the device has done what is queued on it.

        Args:
            timeout: seconds that collectives which are under way on the device have to end.

        Raises:
            DeviceBusy: one did not, and is named. ``abort()`` its communicator, and free again;
                or leave it to the next memory that is made or freed.
            GpuError: the library refused. Nothing more can be done about it.
        """
        deadline = Deadline(seconds_of(timeout))
        if self._pid != os.getpid():
            self._freed = True
            self._range.drop()  # takes no lock: a thread of the parent may hold it for ever
            return
        with self._lock, self._told("memory could not be given back in order"):
            with_tensors, self._freed = self.tensors, True
            if with_tensors:
                self._range.drop()
            else:
                release(self._range, deadline)

    @property
    def freed(self) -> bool:
        """Whether ``free()`` was called."""
        return self._freed

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(self, *_: object) -> None:
        self.free()

    def __repr__(self) -> str:
        if self.freed:
            return f"<DeviceMemory of device {self.device}, freed>"
        return (
            f"<DeviceMemory of device {self.device}: {self.size} of {self.capacity} bytes "
            f"at {self.address:#x}>"
        )

    def __reduce__(self) -> NoReturn:
        raise UsageError("device memory does not travel by pickle: export() it")

    # ------------------------------------------------------------------ its size

    @property
    def size(self) -> int:
        """Bytes of memory."""
        return self._range.size

    @property
    def extents(self) -> tuple[Extent, ...]:
        """The parts that it was made of, in order: one, and one for each time that it grew."""
        return tuple(self._range.extents)

    @property
    def tensors(self) -> int:
        """How many tensors of it live; 0 after it was freed."""
        with self._lock:
            return 0 if self.freed else self._range.tensors

    def grow(self, size: int) -> int:
        """Have this many bytes or more, at the same address; returns how many there are.

        What is there stays as it is, also if this fails.

        Raises:
            UsageError: more than the capacity, or imported, or freed.
            DeviceOutOfMemory: the device has not that much left.
        """
        wanted = self._round_up(_check_size(size))
        with self._usable():
            more = wanted - self.size
            if more <= 0:
                return self.size
            if self.imported:
                raise UsageError(
                    "imported memory grows where it was made; export and import it again"
                )
            if wanted > self.capacity:
                raise UsageError(
                    f"{size} bytes are more than the capacity, {self.capacity}, which "
                    "DeviceMemory.reserve(capacity=...) sets"
                )
            with self._told(f"{more} bytes could not be added to {self.size}"):
                self._range.create(more, self.rdma)
            return self.size

    def allow(self, device: int) -> None:
        """Let another device of this process read and write it, and what it grows by.

        Raises:
            UsageError: there is no such device, or this was freed.
            GpuError: the devices do not reach each other.
        """
        other = device_at(device)
        with self._usable(), self._told(f"device {device} could not be given access"):
            self._range.allow(other.index)

    # ------------------------------------------------------------------ other users

    def export(self) -> ExportedMemory:
        """The memory as another process can import it: data, and a descriptor for each extent.

        Use it with ``with``, which closes the descriptors::

            with memory.export() as exported:
                exported.send(connection)

        Raises:
            GpuUnsupported: imported memory on ROCm.
            GpuError: the library refused; OSError: too many descriptors. None is left open.
        """
        with self._usable(), self._told("memory could not be exported"):
            self._check_exportable()
            fds = self._range.export()
            description = MemoryDescription(
                platform=self._library.platform,
                device=self._device.uuid,
                extents=tuple(extent.size for extent in self._range.extents),
                rdma=self.rdma,
            )
            return ExportedMemory(description, fds)

    def dmabuf(self, offset: int = 0, size: int | None = None) -> DmaBuf:
        """A range of it as a dma-buf, to be registered with a NIC.

        Raises:
            UsageError: the range is not within one extent (``extents``).
            GpuUnsupported: the library has no function for it; imported memory on ROCm.
            GpuError: the device or the kernel cannot do it.
        """
        with self._usable():
            _, size = self._range.span(offset, size)
            number = self._range.extent_around(offset, size)
            with self._told(f"no dma-buf of {size} bytes could be made"):
                self._check_exportable()
                return dmabuf_of(self._library, self._range, number, offset, size)

    def tensor(self, dtype: Any = None, shape: Sequence[int] | None = None, offset: int = 0) -> Any:
        """A torch tensor of it, without a copy. It keeps the memory alive.

        Args:
            dtype: a torch type or its name; bytes (uint8) unless given.
            shape: one dimension from ``offset`` to the end, unless given.
            offset: bytes before its first element.

        Raises:
            UsageError: there is no such type, or it does not fit.
            MissingDependencyError: torch is not installed.
        """
        try:
            import torch.utils.dlpack
        except ImportError as error:
            raise MissingDependencyError(
                "tensors of device memory need torch: pip install 'slurmmesh[train]'"
            ) from error
        return torch.utils.dlpack.from_dlpack(self._capsule(dtype, shape, offset))

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """All of it, as bytes. Nothing is queued on a stream here, so there is none to wait for."""
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError(f"device memory is passed on as it is: no copy, {dl_device=}")
        return self._capsule(None, None, 0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return dlpack.device_of(self._library, self.device)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """All of it, as bytes."""
        with self._usable():
            return {
                "shape": (self.size,),
                "typestr": "|u1",
                "data": (self.address, False),
                "strides": None,
                "version": 3,
            }

    def _capsule(self, dtype: Any, shape: Sequence[int] | None, offset: int) -> Any:
        element = dlpack.element_of("uint8" if dtype is None else dtype)
        with self._usable():
            sizes = dlpack.layout(element, shape, offset, self.size)
            at = self.address + offset
            where = self.__dlpack_device__()
            return dlpack.capsule(self._library, self._range.owner, at, where, element, sizes)

    # ------------------------------------------------------------------ its contents

    def read(self, size: int | None = None, offset: int = 0) -> bytes:
        """Bytes from ``offset`` on; up to the end unless ``size`` is given.

        What other streams than the default one write at the time may be in it or not.

        Raises:
            UsageError: there are not so many.
        """
        with self._usable():
            _, size = self._range.span(offset, size)
            found = self._library.ffi.new("char[]", size)
            with self._told(f"{size} bytes could not be read"):
                for address, start, length in self._range.pieces(offset, size):
                    to = self._host(found) + start
                    self._library.call("sm_memory_copy", self.device, to, address, length)
            return bytes(self._library.ffi.buffer(found, size))

    def write(self, data: Any, offset: int = 0) -> None:
        """Put bytes (anything with a contiguous buffer) at ``offset``. They are there afterwards.

        Raises:
            UsageError: there is not so much room, or ``data`` is no such thing.
        """
        try:
            given = self._library.ffi.from_buffer(data)
        except (TypeError, ValueError, BufferError) as error:
            raise UsageError(f"these are no bytes that could be written: {error}") from error
        with self._usable(), given:
            _, size = self._range.span(offset, len(given))
            with self._told(f"{size} bytes could not be written"):
                for address, start, length in self._range.pieces(offset, size):
                    source = self._host(given) + start
                    self._library.call("sm_memory_copy", self.device, address, source, length)

    def fill(self, value: int, size: int | None = None, offset: int = 0) -> None:
        """Set each byte from ``offset`` on to ``value``, 0 to 255.

        Raises:
            UsageError: there are not so many, or it is no byte.
        """
        if type(value) is not int or not 0 <= value <= 255:
            raise UsageError(f"{value!r} is no byte: 0 to 255")
        with self._usable():
            _, size = self._range.span(offset, size)
            with self._told(f"{size} bytes could not be filled"):
                for address, _, length in self._range.pieces(offset, size):
                    self._library.call("sm_memory_fill", self.device, address, value, length)

    def _host(self, data: Any) -> int:
        return int(self._library.ffi.cast("uintptr_t", data))

    # ------------------------------------------------------------------ checks

    def _round_up(self, size: int) -> int:
        return -(-size // self._unit) * self._unit

    def _check_exportable(self) -> None:
        if self.imported and self._library.platform == "rocm":
            raise GpuUnsupported(  # versions of it crash
                "ROCm cannot export memory that was imported: export it where it was made",
                library=self._library.path("gpu"),
            )

    @contextmanager
    def _usable(self) -> Iterator[None]:
        """Nobody frees or grows it meanwhile."""
        if self._pid != os.getpid():
            raise GpuForked(
                f"this memory of device {self.device} belongs to process {self._pid}, which forked "
                "this one. Reserve it after the fork, or export it to a process started afresh"
            )
        with self._lock:
            if self.freed:
                raise UsageError(f"this memory of device {self.device} was freed")
            yield

    @contextmanager
    def _freed_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            with suppress(GpuError):  # what failed first is told
                self._range.drop()
            raise

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Failures inside say what they are about."""
        try:
            yield
        except GpuError as error:
            of = self._device
            advice = ""
            if isinstance(error, DeviceOutOfMemory):
                advice = f". It has {of.memory_bytes} bytes in all: free some, or ask for less"
                if self._library.platform == "rocm" and _files_are_short():
                    advice += (
                        ". Or it was the limit of open files (ulimit -n), which this process is "
                        "close to: ROCm opens one for each extent"
                    )
            elif isinstance(error, DeviceBusy):
                advice = f". Call abort() of the communicator {error.world!r}, then free() again"
            error.args = (f"device {of.index} ({of.name}): {what}: {error}{advice}",)
            raise


def _files_are_short() -> bool:
    """Whether this process is close to its limit of open files."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        return len(os.listdir("/proc/self/fd")) + _FEW_FILES > limit != resource.RLIM_INFINITY
    except OSError:  # not even the folder can be opened
        return True


def _check_size(size: Any) -> int:
    if type(size) is not int or not 0 < size <= _MOST:
        raise UsageError(f"memory has 1 byte or more, up to {_MOST}, not {size!r}")
    return size

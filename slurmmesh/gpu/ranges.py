"""Addresses of a device and the memory mapped there: made, added to and freed without a leak.

All of it that the bridge knows as an owner (``sm_owner``), which frees it when the last of its
holders lets go: the range itself, and tensors of it.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from slurmmesh.errors import GpuError, UsageError
from slurmmesh.gpu.dlpack import whole
from slurmmesh.gpu.library import Library

_READ_WRITE = 3  # enum sm_access


@dataclass(frozen=True)
class Extent:
    """A part of device memory that was made at once, and is shared as one.

    Attributes:
        offset: of its first byte in the memory.
        size: in bytes.
    """

    offset: int
    size: int


class Range:
    """Reserved addresses, and extents of memory from the first address on.

    Its methods are not to run at the same time. Sizes are multiples of the granularity.

    Attributes:
        device: index of the device that it is for.
        address: the first.
        capacity: bytes of addresses.
        extents: what is mapped, in order.
        owner: a ``sm_owner *``.
    """

    def __init__(self, library: Library, device: int, capacity: int) -> None:
        self.device = device
        self.capacity = capacity
        self.extents: list[Extent] = []
        self._library = library
        self._handles: list[int] = []
        self._reached_by = [device]
        address = library.ffi.new("uint64_t *")
        owner = library.ffi.new("sm_owner **")
        try:
            library.call("sm_memory_reserve", capacity, 0, 0, address)
            library.call("sm_owner_new", device, address[0], capacity, owner)
            self.address = int(address[0])
            self.owner = owner[0]
            self._dropping = weakref.finalize(self, _drop, library, self.owner)
        except BaseException:
            if owner[0] != library.ffi.NULL:
                library.lib.sm_owner_drop(owner[0], library.ffi.NULL)
            elif address[0]:
                library.lib.sm_memory_address_free(address[0], capacity, library.ffi.NULL)
            raise

    @property
    def size(self) -> int:
        """Bytes that are mapped."""
        return self.extents[-1].offset + self.extents[-1].size if self.extents else 0

    def span(self, offset: int, size: int | None) -> tuple[int, int]:
        """The address and the size of a part of it; up to the end unless ``size`` is given.

        Raises:
            UsageError: there are not so many bytes.
        """
        offset = whole(offset)
        length = self.size - offset if size is None else whole(size)
        if offset < 0 or length < 0 or offset + length > self.size:
            raise UsageError(f"{length} bytes from {offset} on are not within {self.size}")
        return self.address + offset, length

    def pieces(self, offset: int, size: int) -> Iterator[tuple[int, int, int]]:
        """A part of it by extents, as older HIP wants it: address, bytes before it, bytes."""
        for extent in self.extents:
            start = max(offset, extent.offset)
            length = min(offset + size, extent.offset + extent.size) - start
            if length > 0:
                yield self.address + start, start - offset, length

    def extent_around(self, offset: int, size: int) -> int:
        """The number of the extent that a part of it is in.

        Raises:
            UsageError: it is in several.
        """
        end = offset + size
        for number, extent in enumerate(self.extents):
            if extent.offset <= offset and end <= extent.offset + extent.size:
                return number
        raise UsageError(
            f"bytes {offset} to {end} are not within one extent; a dma-buf is of one: "
            + ", ".join(f"{e.offset} to {e.offset + e.size}" for e in self.extents)
        )

    @property
    def dropped(self) -> bool:
        return not self._dropping.alive

    @property
    def tensors(self) -> int:
        """Holders besides this one."""
        return int(self._library.lib.sm_owner_holders(self.owner)) - 1

    def drop(self) -> None:
        """Let go of it; the last holder frees it. A second time does nothing."""
        self._dropping()

    def create(self, size: int, rdma: bool) -> None:
        """Map new memory behind what is there. If that fails, nothing has changed."""
        self._add(
            size,
            lambda handle: self._library.call(
                "sm_memory_create", self._reached_by[0], size, int(rdma), handle
            ),
        )

    def import_(self, size: int, fd: int) -> None:
        """As ``create``, with the memory behind a descriptor."""
        self._add(
            size,
            lambda handle: self._library.call(
                "sm_memory_import_fd", self._reached_by[0], fd, handle
            ),
        )

    def _add(self, size: int, obtain: Callable[[Any], None]) -> None:
        library, null = self._library, self._library.ffi.NULL
        handle = library.ffi.new("uint64_t *")
        extent = Extent(self.size, size)
        at = self.address + extent.offset
        mapped = False

        def undo() -> None:
            if mapped:
                library.lib.sm_memory_unmap(at, size, null)
            if handle[0]:
                library.lib.sm_memory_release(handle[0], null)

        try:
            obtain(handle)
            mapped = True  # an interrupt is raised when the call has returned
            try:
                library.call("sm_memory_map", at, size, handle[0])
            except GpuError:
                mapped = False
                raise
            # This device comes last: where the library keeps one answer for all, it is this one.
            for device in reversed(self._reached_by):
                self._set_access(device, extent.offset + size)
        except BaseException:
            undo()
            raise
        try:
            library.call("sm_owner_add", self.owner, at, size, handle[0])
        except GpuError:
            undo()
            raise
        # Interrupted there, nobody knows whose it is: it stays mapped rather than be freed twice.
        self._handles.append(int(handle[0]))
        self.extents.append(extent)

    def _set_access(self, device: int, size: int) -> None:
        # From the start on: up to 7.2 HIP takes no other range, unless extents are of one size.
        self._library.call("sm_memory_set_access", self.address, size, device, _READ_WRITE)

    def allow(self, device: int) -> None:
        """Let another device use what is there and what is added later."""
        if device not in self._reached_by:
            self._set_access(device, self.size)
            self._reached_by.append(device)

    def export(self) -> tuple[int, ...]:
        """A descriptor for each extent, which are the caller's."""
        fds: list[int] = []
        try:
            for number in range(len(self._handles)):
                fds.append(self.export_one(number))
        except BaseException:
            for one in fds:
                os.close(one)
            raise
        return tuple(fds)

    def export_one(self, number: int) -> int:
        """A descriptor for the extent with this number, which is the caller's."""
        fd = self._library.ffi.new("int *", -1)
        try:
            self._library.call("sm_memory_export_fd", self._handles[number], fd)
        except GpuError:
            raise
        except BaseException:  # an interrupt, which is raised when the call has returned
            if fd[0] >= 0:
                os.close(fd[0])
            raise
        return int(fd[0])


def _drop(library: Library, owner: Any) -> None:
    library.call("sm_owner_drop", owner)

"""Device memory for a NIC: descriptors of dma-bufs."""

from __future__ import annotations

import os
from dataclasses import dataclass

from slurmmesh.gpu.library import Library
from slurmmesh.gpu.ranges import Range

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class DmaBuf:
    """A descriptor by which a NIC reaches device memory; see ``DeviceMemory.dmabuf``.

    Close it once it is registered: by the end of ``with``, or ``os.close``.

    Attributes:
        fd: the descriptor.
        offset: of the range in the dma-buf, in bytes.
        size: of the range, in bytes.
    """

    fd: int
    offset: int
    size: int

    def __enter__(self) -> DmaBuf:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fd)


def dmabuf_of(library: Library, memory: Range, number: int, offset: int, size: int) -> DmaBuf:
    """Of a part of memory, which is within its extent with this number. Raises GpuError."""
    if library.platform == "rocm":
        # What ROCm exports are dma-bufs, of whole extents. By address HSA has none of mapped
        # memory.
        fd = memory.export_one(number)
        return DmaBuf(fd, offset - memory.extents[number].offset, size)
    address = memory.address + offset
    start = address // _PAGE * _PAGE
    pages = -(-(address + size - start) // _PAGE) * _PAGE
    fds, before = library.ffi.new("int *"), library.ffi.new("uint64_t *")
    library.call("sm_memory_dmabuf_fd", start, pages, fds, before)
    return DmaBuf(int(fds[0]), int(before[0]) + address - start, size)

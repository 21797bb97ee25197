"""Devices that this process sees."""

from __future__ import annotations

import os
from dataclasses import dataclass

from slurmmesh.errors import GpuUnavailable, UsageError
from slurmmesh.gpu.library import Library, load

_found: tuple[int, tuple[Device, ...]] | None = None  # in which process


@dataclass(frozen=True)
class Device:
    """A GPU.

    Attributes:
        index: among those that this process sees, from 0.
        uuid: ``GPU-…`` or ``MIG-…``, as the visibility masks take it; the same in every process.
        pci_address: domain:bus:device.function.
        memory_bytes: all that it has, used or not.
        vmm: whether memory can be reserved and mapped on it (``DeviceMemory``).
        rdma: whether a NIC can reach such memory by its address; None where nobody tells.
        dmabuf: whether a NIC can reach it by a dma-buf; None where nobody tells.
    """

    index: int
    name: str
    uuid: str
    pci_address: str
    memory_bytes: int
    vmm: bool | None
    rdma: bool | None
    dmabuf: bool | None


def devices() -> tuple[Device, ...]:
    """The devices that this process sees, by index. Asked once; starts the GPU library.

    Raises:
        GpuUnavailable: there is no GPU library or no device; the text says which, and why.
        GpuForked: this process was forked after its parent had used a GPU.
    """
    global _found
    # Two threads may both get past this: they find the same. A lock might be held for ever after a
    # fork.
    if _found is None or _found[0] != os.getpid():
        library = load()
        seen = tuple(_device(library, index) for index in range(_count(library)))
        _found = (os.getpid(), seen)
    return _found[1]


def device_at(index: int) -> Device:
    """The device with this index.

    Raises:
        UsageError: this process sees no such device.
    """
    seen = devices()
    if type(index) is not int or not 0 <= index < len(seen):
        raise UsageError(
            f"there is no device {index!r}: this process sees {len(seen)}, counted from 0"
        )
    return seen[index]


def device_with(uuid: str) -> Device:
    """The device with this uuid.

    Raises:
        UsageError: this process does not see it, or several with this uuid (partitions of one GPU).
    """
    found = [one for one in devices() if one.uuid == uuid]
    if len(found) > 1:
        indexes = ", ".join(str(one.index) for one in found)
        raise UsageError(f"devices {indexes} are all {uuid}: say which, by its index (device=...)")
    if not found:
        seen = ", ".join(one.uuid for one in devices())
        raise UsageError(f"this process does not see the device {uuid}, only {seen}")
    return found[0]


def _count(library: Library) -> int:
    count = library.ask("sm_device_count")
    if count == 0:
        raise GpuUnavailable("this process sees no device", library=library.path("gpu"))
    return count


def _device(library: Library, index: int) -> Device:
    def answer(attribute: int) -> bool | None:
        value = library.ask("sm_device_attribute", index, attribute)
        return None if value < 0 else bool(value)

    return Device(
        index=index,
        name=library.text("sm_device_name", index),
        uuid=library.text("sm_device_uuid", index),
        pci_address=library.text("sm_device_pci_address", index),
        memory_bytes=library.ask("sm_device_memory", index),
        vmm=answer(library.lib.SM_ATTRIBUTE_VMM),
        rdma=answer(library.lib.SM_ATTRIBUTE_RDMA),
        dmabuf=answer(library.lib.SM_ATTRIBUTE_DMABUF),
    )

"""Device memory and collectives over the C bridge; the same over ROCm and over CUDA.

Nothing of a GPU is touched by an import: the libraries are found when the first name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmmesh._doors import front_door

if TYPE_CHECKING:
    from slurmmesh.gpu.device import Device, devices
    from slurmmesh.gpu.memory import DeviceMemory, DmaBuf
    from slurmmesh.gpu.platforms import Platform, platform
    from slurmmesh.gpu.ranges import Extent
    from slurmmesh.gpu.sharing import ExportedMemory, MemoryDescription

__all__ = [
    "Device",
    "DeviceMemory",
    "DmaBuf",
    "ExportedMemory",
    "Extent",
    "MemoryDescription",
    "Platform",
    "devices",
    "platform",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "slurmmesh.gpu.device": ("Device", "devices"),
    "slurmmesh.gpu.memory": ("DeviceMemory", "DmaBuf"),
    "slurmmesh.gpu.platforms": ("Platform", "platform"),
    "slurmmesh.gpu.ranges": ("Extent",),
    "slurmmesh.gpu.sharing": ("ExportedMemory", "MemoryDescription"),
}

__getattr__, __dir__ = front_door(__name__, _HOMES)

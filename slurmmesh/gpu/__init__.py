"""Device memory and collectives over the C bridge; the same over ROCm and over CUDA.

Nothing of a GPU is touched by an import: the libraries are found when the first name is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slurmmesh._doors import front_door

if TYPE_CHECKING:
    from slurmmesh.gpu import compat
    from slurmmesh.gpu.communicator import Communicator
    from slurmmesh.gpu.device import Device, devices
    from slurmmesh.gpu.dmabuf import DmaBuf
    from slurmmesh.gpu.identity import CommunicatorId
    from slurmmesh.gpu.live import Operation, live_communicators, watch_operations
    from slurmmesh.gpu.memory import DeviceMemory
    from slurmmesh.gpu.peers import Peer, this_peer
    from slurmmesh.gpu.platforms import Platform, platform
    from slurmmesh.gpu.ranges import Extent
    from slurmmesh.gpu.sharing import ExportedMemory, MemoryDescription
    from slurmmesh.gpu.streams import Stream

__all__ = [
    "Communicator",
    "CommunicatorId",
    "Device",
    "DeviceMemory",
    "DmaBuf",
    "ExportedMemory",
    "Extent",
    "MemoryDescription",
    "Operation",
    "Peer",
    "Platform",
    "Stream",
    "compat",
    "devices",
    "live_communicators",
    "platform",
    "this_peer",
    "watch_operations",
]

_HOMES: dict[str, tuple[str, ...]] = {
    "slurmmesh.gpu.communicator": ("Communicator",),
    "slurmmesh.gpu.device": ("Device", "devices"),
    "slurmmesh.gpu.dmabuf": ("DmaBuf",),
    "slurmmesh.gpu.identity": ("CommunicatorId",),
    "slurmmesh.gpu.live": ("Operation", "live_communicators", "watch_operations"),
    "slurmmesh.gpu.memory": ("DeviceMemory",),
    "slurmmesh.gpu.peers": ("Peer", "this_peer"),
    "slurmmesh.gpu.platforms": ("Platform", "platform"),
    "slurmmesh.gpu.ranges": ("Extent",),
    "slurmmesh.gpu.sharing": ("ExportedMemory", "MemoryDescription"),
    "slurmmesh.gpu.streams": ("Stream",),
}

__getattr__, __dir__ = front_door(__name__, _HOMES, modules=("compat",))

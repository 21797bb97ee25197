"""The GPUs that the kernel of this machine shows, told without touching one."""

from __future__ import annotations

import contextlib
import os

from slurmmesh.hosts.masks import Machine

_KFD_NODES = "sys/class/kfd/kfd/topology/nodes"


def machine(root: str = "/") -> Machine:
    """What there is. ``root``: the folder that stands for /."""
    dev = os.path.join(root, "dev")
    rocm = os.path.exists(os.path.join(dev, "kfd"))
    cuda = os.path.exists(os.path.join(dev, "nvidiactl"))
    if rocm:
        return Machine(rocm, cuda, _kfd_gpus(os.path.join(root, _KFD_NODES)))
    numbers = [name[6:] for name in os.listdir(dev) if name.startswith("nvidia")] if cuda else []
    return Machine(rocm, cuda, sum(map(str.isdecimal, numbers)))


def _kfd_gpus(nodes: str) -> int:
    """CPUs are nodes too, with the id 0; a GPU that our cgroup does not allow has an id that the
    kernel does not let us read."""
    count = 0
    with contextlib.suppress(OSError):  # it is not mounted, or closed to us: nobody tells
        for node in os.listdir(nodes):
            with contextlib.suppress(OSError), open(os.path.join(nodes, node, "gpu_id")) as file:
                count += file.read().strip() not in ("", "0")
    return count

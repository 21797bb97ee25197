"""What only root can set, and the limits of this process: read from /proc and /sys."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

from slurmmesh.doctor.checks import Check, State
from slurmmesh.hosts.masks import Machine

KERNEL = "Kernel"
LIMITS = "Limits"

_ROOT = "only root can: ask your administrators"
_FILES_LEAST, _FILES_GOOD = 1024, 4096
_SHM_LEAST = 1 << 30


def kernel_checks(machine: Machine, root: Path = Path("/")) -> Iterator[Check]:
    """Settings of the kernel that GPUs want. ``root``: the folder that stands for /."""
    gpu = machine.rocm or machine.cuda
    bad: State = "warning" if gpu else "note"
    balancing = _read(root / "proc/sys/kernel/numa_balancing")
    if balancing == "0":
        yield Check(KERNEL, "NUMA balancing", "ok", "off")
    elif balancing:
        advice = f"sysctl kernel.numa_balancing=0; {_ROOT}" if gpu else ""
        text = "on: pages move under the GPUs, which stalls them" if gpu else "on"
        yield Check(KERNEL, "NUMA balancing", bad, text, advice)
    if not machine.rocm:
        return
    words = _read(root / "proc/cmdline").split()
    if not words:
        yield Check(KERNEL, "command line", "note", "/proc/cmdline cannot be read")
    for word, why in (
        ("iommu=pt", "without it transfers between GPUs and NICs are slow, or hang"),
        ("pci=realloc=off", "without it GPUs may lose their large address ranges"),
    ):
        there = any(word == each or _has_option(each, word) for each in words)
        if there:
            yield Check(KERNEL, word, "ok", "set")
        elif words:
            yield Check(KERNEL, word, "warning", f"not on the command line: {why}", _ROOT)
    kfd = root / "dev/kfd"
    if not os.access(kfd, os.R_OK | os.W_OK):
        advice = "be in the groups render and video; your administrators add you"
        yield Check(KERNEL, "/dev/kfd", "error", "you may not use it", advice)


def _has_option(word: str, wanted: str) -> bool:
    """``pci=bfsort,realloc=off`` has ``pci=realloc=off``."""
    name, _, value = wanted.partition("=")
    return word.startswith(f"{name}=") and value in word.removeprefix(f"{name}=").split(",")


def limit_checks(machine: Machine, root: Path = Path("/")) -> Iterator[Check]:
    """Open files, locked memory, and the room for shared memory."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{_amount(soft)} (at most {_amount(hard)})"
    advice = "raise it: ulimit -n, by --setup or in the site's limits"
    state: State = "ok"
    if soft != resource.RLIM_INFINITY and soft < _FILES_GOOD:
        state = "warning" if soft < _FILES_LEAST else "note"
        text += ": few for many procs on a host"
    yield Check(LIMITS, "open files", state, text, "" if state == "ok" else advice)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        yield Check(LIMITS, "locked memory", "ok", "unlimited")
    else:
        nics = _names(root / "sys/class/infiniband")
        needed = bool(nics) or machine.rocm or machine.cuda
        reason = f": NICs ({', '.join(nics)}) need to lock memory" if nics else ""
        advice = "ulimit -l unlimited: PropagateResourceLimitsExcept=MEMLOCK in slurm.conf, "
        yield Check(
            LIMITS,
            "locked memory",
            "warning" if needed else "note",
            f"{_bytes(soft)}{reason}",
            f"{advice}LimitMEMLOCK=infinity for slurmd" if needed else "",
        )
    yield _shm(root / "dev/shm")


def _shm(path: Path) -> Check:
    try:
        found = os.statvfs(path)
    except OSError as error:
        text = f"{error.strerror}: libraries share memory there"
        return Check(LIMITS, "/dev/shm", "warning", text, "mount a tmpfs there")
    size, free = found.f_frsize * found.f_blocks, found.f_frsize * found.f_bavail
    text = f"{_bytes(size)}, {_bytes(free)} free"
    if not os.access(path, os.W_OK):
        return Check(LIMITS, "/dev/shm", "warning", f"{text}; you may not write there")
    if min(size, free) < _SHM_LEAST:
        advice = "remove what is left there; in a container: --shm-size, or the host's /dev/shm"
        return Check(LIMITS, "/dev/shm", "warning", f"{text}: little for RCCL's buffers", advice)
    return Check(LIMITS, "/dev/shm", "ok", text)


def _read(path: Path) -> str:
    """Empty if it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def _names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _amount(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)


def _bytes(number: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"

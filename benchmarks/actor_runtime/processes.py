"""What the kernel tells of processes: memory, processor time, whether they are there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path


def pss_mib(pids: Iterable[int]) -> float:
    """Memory of these processes, what is shared counted in parts, in MiB."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total / 1024


def cpu_s(pids: Iterable[int]) -> float:
    """Processor time that the present threads of these processes have had."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread may end meanwhile
                total += int(path.read_text().split()[0])
    return total / 1e9


def runs(pid: int) -> bool:
    """Whether it is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def program() -> list[int]:
    """The pids of this process and of all below it."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError):
                parent = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)[1].split()[1]
                children.setdefault(int(parent), []).append(int(entry))
    found = [os.getpid()]
    for pid in found:
        found += children.get(pid, [])
    return found

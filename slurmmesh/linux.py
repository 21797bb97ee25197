"""What only the kernel can tell or do: parent-death signals, subreapers, sweeping, OOM kills."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)

MAX_REQUEST = 1 << 17
"""Bytes that the kernel takes as one packet of a unix socket, everywhere."""


def _prctl(option: int, value: int | bytes) -> None:
    argument = ctypes.c_ulong(value) if isinstance(value, int) else value
    if _libc.prctl(option, argument, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``signum`` when ``parent`` ends; end at once if it has already.

    The setting belongs to the calling thread and follows the parent's thread that is asked.
    """
    _prctl(_PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:
        os._exit(1)


def python_command(module: str, *args: str) -> list[str]:
    """A command that runs ``main()`` of a module in a new interpreter.

    It imports from where this one does, and from nowhere else: ``python -m`` would look in the
    working folder first, where a ``queue.py`` of the user's would take the place of Python's.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; import {module} as module; module.main()"
    return [sys.executable, "-c", code, *args]


def set_name(name: str) -> None:
    """What ``ps`` shows as this process's command name (15 bytes)."""
    _prctl(_PR_SET_NAME, name.encode())


def become_subreaper() -> None:
    """Become the parent of descendants whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def kill_group(pid: int) -> None:
    """SIGKILL a process group; no matter if it is gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def children() -> list[int]:
    """Pids of this process's children, zombies included."""
    pids: list[int] = []
    for path in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):
            pids += [int(pid) for pid in path.read_text().split()]
    return pids


def reap_strangers(ours: set[int]) -> None:
    """Reap ended children that are not in ``ours``: orphans that came to us as subreaper."""
    for pid in children():
        if pid not in ours:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def sweep_children(patience_s: float = 5.0) -> None:
    """Kill and reap every descendant: each generation comes to us when its parent is gone.

    One that the kernel cannot end (it hangs in a driver) is left after ``patience_s`` seconds.
    """
    deadline = time.monotonic() + patience_s
    while (pids := children()) and time.monotonic() < deadline:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.001)


def oom_kills() -> int:
    """How many processes the kernel has killed for memory in our cgroup (v2); 0 if not told."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            if line.startswith("0::"):
                path = Path("/sys/fs/cgroup", line[3:].lstrip("/"), "memory.events")
                for entry in path.read_text().splitlines():
                    name, count = entry.split()
                    if name == "oom_kill":
                        return int(count)
    return 0

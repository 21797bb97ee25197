"""Processes seen through /proc, their ending, and the system calls for a node of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from slurmmesh.errors import LabError
from slurmmesh.lab.environment import MARK

_libc = ctypes.CDLL(None, use_errno=True)

KEEPER_NAME = "lab-keeper"
MANAGER_NAME = "lab-manager"
NODE_NAME = "lab-node"
_INFRASTRUCTURE = {
    KEEPER_NAME,
    MANAGER_NAME,
    NODE_NAME,
    "munged",
    "slurmctld",
    "slurmscriptd",
    "slurmd",
    "slurmstepd",
    "slurmdbd",
    "mariadbd",
}

_POLL_S = 0.005
# A process that SIGKILL does not end within this hangs in the kernel.
_KILL_DEADLINE_S = 20.0


def unshare(flags: int) -> None:
    """Leave the namespaces named by ``flags`` for new ones."""
    if _libc.unshare(flags) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def mount(source: str, target: str, flags: int) -> None:
    """mount(2) without file system type and data: for binds and propagation."""
    if _libc.mount(source.encode(), target.encode(), None, ctypes.c_ulong(flags), None) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"mounting {target}: {os.strerror(code)}")


@dataclass(frozen=True)
class Process:
    """One line of the process table; ``state`` is the kernel's letter, such as ``Z``."""

    pid: int
    parent: int
    name: str
    state: str


def process_table() -> dict[int, Process]:
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, ValueError):
                process = _read_stat(int(entry))
                table[process.pid] = process
    return table


def _read_stat(pid: int) -> Process:
    with open(f"/proc/{pid}/stat", "rb") as file:
        text = file.read().decode(errors="replace")
    # The name is in parentheses and may hold any character, parentheses too.
    name = text[text.index("(") + 1 : text.rindex(")")]
    state, parent = text[text.rindex(")") + 2 :].split()[:2]
    return Process(pid, int(parent), name, state)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie whose parent is slow to collect it does not."""
    try:
        return _read_stat(pid).state not in "ZX"
    except (OSError, ValueError):
        return False


def descendants(root: int, table: dict[int, Process] | None = None) -> list[Process]:
    """All living processes below ``root``, nearest first; zombies are left out."""
    table = process_table() if table is None else table
    children: dict[int, list[Process]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    generation = [root]
    while generation:
        below = [child for pid in generation for child in children.get(pid, ())]
        found += (process for process in below if process.state not in "ZX")
        generation = [process.pid for process in below]
    return found


def marked(root: str, table: dict[int, Process] | None = None) -> list[Process]:
    """Living processes that carry a lab's mark in the environment they were started with."""
    entry = f"{MARK}={root}".encode()
    found = []
    for process in (process_table() if table is None else table).values():
        with contextlib.suppress(OSError), open(f"/proc/{process.pid}/environ", "rb") as file:
            if process.state not in "ZX" and entry in file.read().split(b"\0"):
                found.append(process)
    return found


def of_a_lab(root: str) -> list[Process]:
    """All that belongs to the lab whose keeper (or whose stand-in) this process is."""
    table = process_table()
    mine = {os.getpid()}
    found = {p.pid: p for p in (*descendants(os.getpid(), table), *marked(root, table))}
    return [process for pid, process in found.items() if pid not in mine]


def users_processes(processes: Iterable[Process]) -> list[Process]:
    """Without daemons and helpers: tasks of jobs, and the command run by `exec`."""
    return [process for process in processes if process.name not in _INFRASTRUCTURE]


def send(processes: Iterable[Process], signum: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signum)


def reap() -> dict[int, int]:
    """Collect all dead children; pid to exit code, negative for a signal."""
    dead: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            dead[pid] = os.waitstatus_to_exitcode(status)
    return dead


def kill_all(find: Callable[[], list[Process]]) -> None:
    """SIGKILL what ``find`` finds, in its order, until it finds nothing.

    Raises:
        LabError: something outlives SIGKILL.
    """
    deadline = time.monotonic() + _KILL_DEADLINE_S
    while True:
        reap()
        alive = find()
        if not alive:
            return
        if time.monotonic() > deadline:
            rest = ", ".join(f"{process.name} (pid {process.pid})" for process in alive)
            raise LabError(f"could not end {rest}")
        send(alive, signal.SIGKILL)
        time.sleep(_POLL_S)


def end_politely(find: Callable[[], list[Process]], grace_s: float) -> None:
    """SIGTERM to what ``find`` finds, then wait up to ``grace_s`` until it finds nothing."""
    asked: set[int] = set()
    deadline = time.monotonic() + grace_s
    while True:
        reap()
        alive = find()
        if not alive or time.monotonic() > deadline:
            return
        send((process for process in alive if process.pid not in asked), signal.SIGTERM)
        asked.update(process.pid for process in alive)
        time.sleep(_POLL_S)

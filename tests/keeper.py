"""The small process that pytest runs as the child of.

It is the subreaper: orphans of the tests get it as their parent, as they would get init, so they
are found and reaped at once, and whatever is left when pytest ends, however it ends, is killed.
Run as a program it starts a worker of pytest-xdist, with a keeper of its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

# In the environment of a worker of pytest-xdist, until it has read it.
WORKERS_TEMP = "SLURMMESH_TESTS_TEMP"

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


def descendants(root: int) -> dict[tuple[int, str], str]:
    """Processes below ``root``, as (pid, start time) -> state."""
    children: dict[int, list[tuple[int, str, str]]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):
            text = Path("/proc", entry, "stat").read_text()
            fields = text[text.rindex(")") + 2 :].split()
            children.setdefault(int(fields[1]), []).append((int(entry), fields[19], fields[0]))
    found: dict[tuple[int, str], str] = {}
    parents = [root]
    while parents:
        for pid, started, state in children.get(parents.pop(), ()):
            found[pid, started] = state
            parents.append(pid)
    return found


def has_children(pid: int) -> bool:
    """Or may have: cheap, beside ``_descendants``, and most tests start no process."""
    tasks = f"/proc/{pid}/task"
    try:
        return any(Path(tasks, task, "children").read_text() for task in os.listdir(tasks))
    except OSError:  # a thread ended
        return True


def has_others(keeper: int, pytest_pid: int) -> bool:
    return Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split() != [str(pytest_pid)]


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def become_child(temp: Path) -> None:
    """Fork: the child goes on as pytest; the parent reaps, sweeps, and ends as pytest ended."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    pytest_pid = os.fork()
    if pytest_pid == 0:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C reaches pytest itself
    for signum in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda signum, _frame: os.kill(pytest_pid, signum))
    pid = status = 0
    while pid != pytest_pid:
        pid, status = os.wait()
    with contextlib.suppress(ChildProcessError):
        while True:
            for left, _started in descendants(os.getpid()):
                kill(left)
            os.wait()
    shutil.rmtree(temp, ignore_errors=True)
    code = os.waitstatus_to_exitcode(status)
    os._exit(code if code >= 0 else 128 - code)


def let_children_have_signals() -> None:
    """What nohup or a shell's ``&`` has us ignore, what we start would ignore, too."""
    for signum in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, lambda _signum, _frame: None)


def make_temp() -> str:
    """The temp folder of one pytest process."""
    return tempfile.mkdtemp(prefix="smt-")


def start_worker() -> NoReturn:
    temp = make_temp()
    become_child(Path(temp))
    os.environ[WORKERS_TEMP] = temp
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    start_worker()

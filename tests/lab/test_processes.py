from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

import pytest

from slurmmesh.errors import LabError
from slurmmesh.lab import processes
from slurmmesh.lab.environment import MARK

SLEEP = [sys.executable, "-c", "import time; time.sleep(600)"]
# A grandchild whose parent has ended, and which has moved to a session of its own.
STRAY = "import os,time; os.fork() and os._exit(0); os.setsid(); print(os.getpid(), flush=True);"
STRAY += "time.sleep(600)"


def test_descendants_come_nearest_first_and_without_the_dead(
    wait_until: Callable[..., None],
) -> None:
    shell = subprocess.Popen(
        ["sh", "-c", "true & sleep 600 & echo ready; wait; wait"], stdout=subprocess.PIPE
    )
    try:
        assert shell.stdout
        shell.stdout.readline()

        def below() -> list[processes.Process]:
            found = processes.descendants(os.getpid())
            return [p for p in found if p.name in ("sh", "sleep")]

        # A child of the shell has its name until it is the program.
        wait_until(lambda: [p.name for p in below()] == ["sh", "sleep"], "a shell and its child")
        assert below()[0].pid == shell.pid
    finally:
        processes.kill_all(lambda: processes.descendants(shell.pid))
        shell.kill()
        shell.communicate()


def test_a_name_with_parentheses_is_read_right() -> None:
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "from slurmmesh.linux import set_name; import time;"
            "set_name('a) S 1 (b'); print('ready', flush=True); time.sleep(600)",
        ],
        stdout=subprocess.PIPE,
    )
    try:
        assert child.stdout
        child.stdout.readline()
        entry = processes.process_table()[child.pid]
        assert (entry.name, entry.parent) == ("a) S 1 (b", os.getpid())
    finally:
        child.kill()
        child.communicate()


def test_marked_processes_are_found_wherever_they_went(wait_until: Callable[..., None]) -> None:
    env = {**os.environ, MARK: "/tmp/lab-of-this-test"}
    parent = subprocess.Popen(
        [sys.executable, "-c", STRAY], env=env, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout
    stray = int(parent.stdout.readline())
    parent.stdout.close()
    parent.wait()
    assert [p.pid for p in processes.marked("/tmp/lab-of-this-test")] == [stray]
    assert processes.marked("/tmp/lab-of-this") == []
    processes.kill_all(lambda: processes.marked("/tmp/lab-of-this-test"))
    wait_until(lambda: not os.path.exists(f"/proc/{stray}"), "the stray is gone")


def test_users_processes_are_asked_before_they_are_killed() -> None:
    polite = "import signal,sys,time; signal.signal(signal.SIGTERM, lambda *a: sys.exit(7));"
    child = subprocess.Popen(
        [sys.executable, "-c", polite + "print('ready', flush=True); time.sleep(600)"],
        stdout=subprocess.PIPE,
    )
    assert child.stdout
    child.stdout.readline()

    def alive() -> list[processes.Process]:
        return [p for p in processes.process_table().values() if p.pid == child.pid]

    def alive_still() -> list[processes.Process]:
        return [p for p in alive() if p.state != "Z"]

    started = os.fork()
    if started == 0:
        processes.end_politely(alive_still, 60.0)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(started, 0)[1]) == 0
    assert child.wait() == 7
    child.stdout.close()


def test_daemons_are_told_from_what_users_run() -> None:
    table = [
        processes.Process(pid, 1, name, "S")
        for pid, name in enumerate(["slurmd", "slurmstepd", "lab-node", "python", "bash", "srun"])
    ]
    assert [p.name for p in processes.users_processes(table)] == ["python", "bash", "srun"]


def test_a_child_dies_with_its_parent(wait_until: Callable[..., None]) -> None:
    program = (
        "import os,signal,time\n"
        "from slurmmesh.lab.spawn import fork_child\n"
        "pid = fork_child(lambda: time.sleep(600), signal.SIGKILL)\n"
        "print(pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert parent.stdout
    child = int(parent.stdout.readline())
    assert os.path.exists(f"/proc/{child}")
    parent.send_signal(signal.SIGKILL)
    parent.communicate()
    wait_until(lambda: not os.path.exists(f"/proc/{child}"), "the child is gone")


def test_what_cannot_be_killed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 1e9])
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    monkeypatch.setattr(processes, "reap", dict)
    stuck = processes.Process(4_000_000, 1, "slurmd", "D")
    with pytest.raises(LabError, match=r"slurmd \(pid 4000000\)"):
        processes.kill_all(lambda: [stuck])

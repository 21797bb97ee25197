"""A fork server that is forked from its agent keeps nothing of it and ends with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

AGENT = """
import os, signal, socket, sys, threading
from slurmmesh.hosts.forking import fork_here

kept = open(os.devnull), *socket.socketpair(), os.pipe()
os.set_inheritable(kept[0].fileno(), True)
signal.signal(signal.SIGUSR2, lambda *_: os._exit(9))
server = fork_here()
print(server.pid, flush=True)
sys.stdin.read()
server.end()
print("ended", flush=True)
sys.stdin.close()
again = fork_here()
print(again.pid, flush=True)
signal.pause()
"""


def state(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def descriptors(pid: int) -> dict[str, str]:
    folder = Path(f"/proc/{pid}/fd")
    return {path.name: os.readlink(path) for path in folder.iterdir()}


def is_ready(pid: int) -> bool:
    """It ignores SIGINT from when it serves."""
    return bool(int(state(pid)["SigIgn"], 16) >> (signal.SIGINT - 1) & 1)


def test_it_keeps_nothing_of_its_agent_and_ends_with_it(wait_until):
    agent = subprocess.Popen(
        [sys.executable, "-c", AGENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        server = int(agent.stdout.readline())
        wait_until(lambda: is_ready(server))
        held = {
            fd: os.readlink(f"/proc/{server}/fd/{fd}") for fd in os.listdir(f"/proc/{server}/fd")
        }
        assert held.pop("0") == os.devnull
        assert {held.pop("1"), held.pop("2")} == {
            descriptors(agent.pid)["1"],
            descriptors(agent.pid)["2"],
        }
        [link] = held.values()
        assert link.startswith("socket:")
        caught = int(state(server)["SigCgt"], 16)
        assert not caught >> (signal.SIGUSR2 - 1) & 1
        agent.stdin.close()
        assert agent.stdout.readline() == "ended\n"
        assert not Path(f"/proc/{server}").exists()
        again = int(agent.stdout.readline())
        agent.kill()
        wait_until(lambda: not Path(f"/proc/{again}").exists())  # it ends with its agent


def test_a_process_with_threads_is_not_forked():
    code = (
        "import threading; from slurmmesh.hosts.forking import fork_here\n"
        "stop = threading.Event(); threading.Thread(target=stop.wait).start()\n"
        "print(fork_here()); stop.set()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"

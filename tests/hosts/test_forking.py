"""A fork server that is forked from its agent keeps nothing of it and ends with it."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from slurmmesh.hosts.messages import ForkReply, ForkRequest
from slurmmesh.linux import MAX_REQUEST

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


@contextmanager
def server_where(lines: str) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """A fork server that has run these lines first, and the socket to it.

    They replace a function: nothing else makes a real one fail at that point.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = (
        f"import os, socket\nfrom slurmmesh.hosts import forkserver\n{lines}\n"
        f"forkserver.serve(socket.socket(fileno={theirs.fileno()}))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], pass_fds=[theirs.fileno()], stderr=subprocess.PIPE, text=True
    )
    theirs.close()
    ours.settimeout(60)
    with process, ours:
        yield process, ours
        ours.close()


def ask(sock: socket.socket, imports: tuple[str, ...] = ()) -> None:
    """Ask for one proc."""
    request = ForkRequest((0,), {}, (), tuple(sys.path), "/", os.getpid(), imports)
    with open(os.devnull) as nothing:
        socket.send_fds(sock, [pickle.dumps(request)], [nothing.fileno()] * 3)


def test_where_procs_cannot_be_forked_the_agent_hears_why_and_there_is_one_server_yet():
    refuse = "def refuse(*_): raise OSError(24, 'Too many open files')\nos.pidfd_open = refuse"
    with server_where(refuse) as (process, sock):
        for _ in range(2):
            ask(sock)
            reply = pickle.loads(sock.recv(MAX_REQUEST))
            assert reply == ForkReply(error="cannot fork: [Errno 24] Too many open files")
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            assert children.read_text() == ""


def test_where_the_process_between_dies_the_agent_is_told():
    with server_where("forkserver._fork_procs = lambda *_: os.abort()") as (_, sock):
        ask(sock)
        reply = pickle.loads(sock.recv(MAX_REQUEST))
        assert reply == ForkReply(error="the process that was to fork it died")


def test_a_server_that_loses_an_order_with_imports_ends_and_says_why():
    lose = "def lose(*_): raise RuntimeError('lost')\nforkserver._answer = lose"
    with server_where(lose) as (process, sock):
        ask(sock, ("this",))
        assert sock.recv(MAX_REQUEST) == b""
        assert process.stderr is not None
        assert "RuntimeError: lost" in process.stderr.read()

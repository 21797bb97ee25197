"""Hosts on this machine: agents as child processes over socket pairs, no port and no Slurm."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path
from typing import NamedTuple

from slurmmesh.errors import SetupError
from slurmmesh.linux import python_command


class LocalAgent:
    """A host agent that is our child. It leaves by itself when its link to us breaks."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> str | None:
        """None while it runs, else how it ended."""
        code = self._process.poll()
        return None if code is None else f"its agent exited with code {code}"

    def terminate(self) -> None:
        """Ask it to end, without waiting."""
        self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is gone; false if it is not within the time."""
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """End it the hard way and wait until it is gone."""
        self._process.kill()
        self._process.wait()


class LocalHost(NamedTuple):
    """A host whose agent has been started; ``sock`` is our end of the link to it."""

    name: str
    agent: LocalAgent
    sock: socket.socket

    def end(self) -> None:
        """End it, before anybody has spoken to it."""
        self.sock.close()
        self.agent.kill()


def start_local_hosts(names: list[str], logs: Path | None) -> list[LocalHost]:
    """Start an agent for each name.

    Args:
        logs: where theirs will be, for who looks at processes.

    Raises:
        SetupError: out of processes or descriptors.
    """
    hosts: list[LocalHost] = []
    try:
        for name in names:
            hosts.append(_start_host(name, str(logs / f"{name}.log") if logs else name))
    except OSError as error:
        for host in hosts:
            host.end()
        raise SetupError(f"a host on this machine cannot be started: {error}") from error
    return hosts


def _start_host(name: str, label: str) -> LocalHost:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                python_command("slurmmesh.hosts.agent", str(theirs.fileno()), label),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C at the terminal is for the controller, which then ends its hosts in order.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    return LocalHost(name, LocalAgent(process), ours)

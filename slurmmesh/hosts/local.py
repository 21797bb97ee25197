"""Hosts on this machine: agents as child processes over socket pairs, no port and no Slurm."""

from __future__ import annotations

import socket
import subprocess

from slurmmesh.errors import SetupError
from slurmmesh.hosts.controller import Controller
from slurmmesh.hosts.roster import HostRecord
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


def start_local_hosts(controller: Controller, names: list[str]) -> list[HostRecord]:
    """Start an agent for each name.

    Raises:
        SetupError: out of processes or descriptors.
    """
    try:
        return [_start_agent(controller, name) for name in names]
    except OSError as error:
        raise SetupError(f"a host on this machine cannot be started: {error}") from error


def _start_agent(controller: Controller, name: str) -> HostRecord:
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                python_command("slurmmesh.hosts.agent", "--fd", str(theirs.fileno())),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                # Ctrl-C at the terminal is for the controller, which then ends its hosts in order.
                start_new_session=True,
            )
        except BaseException:
            ours.close()
            raise
    host = controller.roster.add_host(name, launched=LocalAgent(process))
    controller.roster.attach(host, ours)
    return host

"""Slurm's commands for a program in an image: run outside of it, asked for from within.

They are asked for through a unix socket in Linux's abstract name space: there it needs no file,
which a container might not see and whose path might be too long. Anyone on the node may connect;
only processes of the same user are heard, and what they send is data. There is srun, whose tasks
then run in the image too, and scancel, scontrol and squeue. A process that asked for a command
gets its exit code; when it is gone, the command is ended.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmmesh.errors import SetupError, SlurmmeshError, UsageError
from slurmmesh.slurm import environment
from slurmmesh.slurm.container import inside
from slurmmesh.slurm.container.image import Container

NAMES = ("srun", "scancel", "scontrol", "squeue")
# From SIGTERM to a command that nobody waits for until it is killed.
_GRACE_S = 10.0
_LOOK_EVERY_S = 0.5
# These lead out of the image, or out of the job.
_REFUSED = ("--container", "--jobid", "--cluster", "--multi-prog", "--pty")
_LOOKS = ("show", "ping")
_OF_SLURM = ("SLURM_", "SLURMD_", "SBATCH_", "SRUN_", "PMI_", "PMI2_", "PMIX_")
# What bash changes by itself; the stand-ins are for the controller alone.
_NOT_THE_PROGRAMS = frozenset({"_", "PWD", "OLDPWD", "SHLVL", "PATH"})


@dataclass(eq=False)
class _Client:
    """A process in the image that is connected, and what runs for it."""

    sock: socket.socket
    buffer: bytearray = field(default_factory=bytearray)
    descriptors: list[int] = field(default_factory=list)
    process: subprocess.Popen[bytes] | None = None
    pidfd: int = -1

    def close_descriptors(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


class Commands:
    """The commands of one job; its ``name`` is the socket's.

    Args:
        selector: for all that it waits for; the data of each key is called.
        folder: where the stand-ins are put. Use it in a ``with``, which ends what runs.

    Attributes:
        controller_pidfd: of the controller, once it is in the image; else -1.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(
        self, selector: selectors.BaseSelector, container: Container, folder: Path
    ) -> None:
        self.name = f"slurmmesh-{uuid.uuid4().hex}"
        self.folder = folder
        self.controller_pidfd = -1
        self._selector = selector
        self._container = container
        self._clients: set[_Client] = set()
        self._unwanted: list[tuple[subprocess.Popen[bytes], float]] = []
        self._environ_before: Mapping[str, str] = {}
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind("\0" + self.name)
        self._listener.listen(128)
        self._listener.setblocking(False)
        selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._write_stand_ins()

    def __enter__(self) -> Commands:
        return self

    def __exit__(self, *_: object) -> None:
        """End all, in bounded time."""
        self._selector.unregister(self._listener)
        self._listener.close()
        for client in list(self._clients):
            self._drop(client)
        while self._unwanted:
            self.serve()
        if self.controller_pidfd >= 0:
            os.close(self.controller_pidfd)

    def serve(self) -> None:
        """Wait until something happens, and see to it."""
        for key, _ in self._selector.select(_LOOK_EVERY_S if self._unwanted else None):
            # One of them may have ended another.
            if self._selector.get_map().get(key.fd) is key:
                key.data()
        for process, deadline in self._unwanted:
            if process.poll() is None and time.monotonic() > deadline:
                process.kill()
        self._unwanted = [each for each in self._unwanted if each[0].poll() is None]

    def _write_stand_ins(self) -> None:
        self.folder.mkdir(mode=0o700, exist_ok=True)
        shutil.copyfile(inside.__file__, self.folder / "inside.py")
        for name in NAMES:
            path = self.folder / name
            run = f'exec python3 -I -S "${{0%/*}}/inside.py" {self.name} {name} "$@"'
            path.write_text(f"#!/bin/sh\n{run}\n")
            path.chmod(0o700)

    # -- who asks --------------------------------------------------------------------------------

    def _accept(self) -> None:
        with contextlib.suppress(BlockingIOError, ConnectionError):
            sock, _ = self._listener.accept()
            if inside.peer(sock)[1] != os.getuid():
                sock.close()
                return
            sock.settimeout(_GRACE_S)
            client = _Client(sock)
            self._clients.add(client)
            self._selector.register(sock, selectors.EVENT_READ, lambda: self._hear(client))

    def _hear(self, client: _Client) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(client.sock, 1 << 16, 2)
            client.descriptors += descriptors
            client.buffer += data
            while (message := inside.unpacked(client.buffer)) is not None:
                self._answer(client, message)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            data = b""  # it is gone, or talks nonsense
        if not data:
            self._drop(client)

    def _answer(self, client: _Client, message: Mapping[str, Any]) -> None:
        if "signal" in message:
            signum = signal.Signals(message["signal"])
            if client.process is not None:
                client.process.send_signal(signum)
        elif "entered" in message:
            if self.controller_pidfd < 0:
                self._environ_before = message["environ"]
                self.controller_pidfd = os.pidfd_open(inside.peer(client.sock)[0])
            client.sock.sendall(inside.packed({"entered": True}))
        elif client.process is None:
            try:
                client.process = self._start(client, message)
            except (OSError, SlurmmeshError) as error:
                client.sock.sendall(inside.packed({"error": str(error)}))
                return
            client.pidfd = os.pidfd_open(client.process.pid)
            self._selector.register(client.pidfd, selectors.EVENT_READ, lambda: self._ended(client))

    # -- what runs for them ----------------------------------------------------------------------

    def _start(self, client: _Client, message: Mapping[str, Any]) -> subprocess.Popen[bytes]:
        name, words = message["command"], message["words"]
        if name == "srun":
            options, task = split(words)
            own = self._set_by_program(message["environ"])
            words = [
                *options,
                *self._container.of_step(message["folder"], task, own, os.environ),
            ]
            environ = self._container.environ(environment.for_step(os.environ), own)
        else:
            check(name, words, os.environ.get("SLURM_JOB_ID", ""))
            environ = environment.for_client(os.environ)
        stdout, stderr = client.descriptors
        try:
            return subprocess.Popen(
                [find(name), *words],
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        finally:
            client.close_descriptors()

    def _set_by_program(self, environ: Mapping[str, str]) -> dict[str, str]:
        """The variables that a program has set or changed: its steps get them."""
        return {
            name: value
            for name, value in environ.items()
            if self._environ_before.get(name) != value
            and name not in _NOT_THE_PROGRAMS
            and not name.startswith(_OF_SLURM)
        }

    def _ended(self, client: _Client) -> None:
        assert client.process is not None
        with contextlib.suppress(OSError):
            client.sock.sendall(inside.packed({"code": client.process.wait()}))
        self._drop(client)

    def _drop(self, client: _Client) -> None:
        """Forget a client, and end what still runs for it."""
        self._clients.discard(client)
        self._selector.unregister(client.sock)
        client.sock.close()
        client.close_descriptors()
        if client.process is None:
            return
        self._selector.unregister(client.pidfd)
        os.close(client.pidfd)
        if client.process.poll() is None:
            client.process.terminate()
            self._unwanted.append((client.process, time.monotonic() + _GRACE_S))


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of srun: its options, and the command.

    Raises:
        UsageError: there is no command, or an option that leads out of the image or the job.
    """
    options = []
    for at, word in enumerate(words):
        if not word.startswith("-") or word == "--":
            command = list(words[at + (word == "--") :])
            break
        if word.startswith(_REFUSED):
            raise UsageError(f"{word} cannot be given to srun in an image")
        options.append(word)
    else:
        command = []
    if not command:
        raise UsageError("srun without a command; in an image each option is one word, as --a=b")
    return options, command


def check(name: str, words: Sequence[str], job_id: str) -> None:
    """Raise UsageError for a command that does more than look, or end this job or its steps."""
    verb = next((word for word in words if not word.startswith("-")), "")
    if name == "squeue" or (name == "scontrol" and verb in _LOOKS):
        return
    if name == "scancel":
        targets = [word for word in words if not word.startswith("--signal=")]
        if targets and all(word.partition(".")[0] == job_id for word in targets):
            return
    raise UsageError(f"`{' '.join([name, *words])}` is not at hand in an image")


def find(name: str) -> str:
    """The path of a command of Slurm.

    Raises:
        SetupError: it is not installed here.
    """
    path = shutil.which(name)
    if path is None:
        raise SetupError(f"{name} is not on the PATH of the node {os.uname().nodename}")
    return path

"""Programs of GPU tests: run in processes of their own, which find an emulator or real libraries.

GPU libraries are loaded once in a process and stay; so none is loaded in pytest's process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.emulator import build
from tests.gpu import forkserver

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT_S = 600


class ProgramFailed(AssertionError):
    """A program ended with another exit code than 0. The text is what it printed."""


class Started:
    """A program that runs. ``finish`` must be called.

    Attributes:
        pid: of its process.
    """

    def __init__(self, connection: socket.socket, output: Path) -> None:
        self._connection = connection
        self._lines = connection.makefile()
        self._output = output
        self.pid = int(json.loads(self._lines.readline())["pid"])

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def end(self) -> tuple[int, Any, str]:
        """Its exit code, its answer (None: there was none), and what it printed."""
        told: dict[str, Any] = {}
        with self._connection, self._lines:
            try:
                for line in self._lines:
                    told |= json.loads(line)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self.kill()
                while self._connection.recv(1 << 16):  # until it has ended
                    pass
        printed = self._output.read_text() if self._output.exists() else ""
        if "code" not in told:
            return -signal.SIGKILL, None, printed + f"\n(killed after {TIMEOUT_S} s)"
        return told["code"], told.get("answer"), printed

    def finish(self) -> Any:
        """Its answer. Raises ``ProgramFailed``."""
        code, answer, printed = self.end()
        if code:
            raise ProgramFailed(f"exit code {code}\n{printed}")
        return answer


class Servers:
    """Fork servers, one for each environment that a process must start with."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._running: dict[str, tuple[subprocess.Popen[bytes], Path]] = {}
        self._numbers = itertools.count()

    def start(
        self,
        program: Callable[..., Any],
        arguments: tuple[Any, ...],
        gpu: Gpu,
        fds: tuple[int, ...],
    ) -> Started:
        environment = gpu.environment()
        output = self._folder / f"output-{next(self._numbers)}"
        order = {
            "module": program.__module__,
            "name": program.__name__,
            "arguments": arguments,
            "environment": environment,
            "output": str(output),
        }
        path = self._server(str(gpu.folder), environment)
        return Started(forkserver.request(path, order, fds, TIMEOUT_S), output)

    def _server(self, key: str, environment: dict[str, str]) -> Path:
        if key not in self._running:
            path = self._folder / f"server-{len(self._running)}"
            with open(f"{path}.log", "wb") as log:
                process = subprocess.Popen(
                    [sys.executable, "-m", forkserver.__name__, str(path)],
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            self._running[key] = (process, path)
        process, path = self._running[key]
        assert process.poll() is None, Path(f"{path}.log").read_text()
        return path

    def stop(self) -> None:
        for process, _ in self._running.values():
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Gpu:
    """Where a program finds its GPU libraries.

    Attributes:
        name: for a person: ``rocm-7.1``.
        platform: ``rocm`` or ``cuda``.
        folder: of the emulator's libraries; None: the real ones of this machine.
        settings: of the emulator (tests/emulator/build.py), in lower case.
    """

    name: str
    platform: str
    folder: Path | None
    servers: Servers = field(repr=False)
    settings: Mapping[str, str | int] = field(default_factory=dict)

    @property
    def emulated(self) -> bool:
        return self.folder is not None

    def environment(self, **settings: str | int) -> dict[str, str]:
        made = {k: v for k, v in os.environ.items() if not k.endswith("_VISIBLE_DEVICES")}
        if self.folder is not None:
            made = build.environment(self.folder, made, **{**self.settings, **settings})
        made["SLURMMESH_GPU_PLATFORM"] = self.platform
        return made

    def having(self, **settings: str | int) -> Gpu:
        """The same with other settings of the emulator."""
        merged = {**self.settings, **settings}
        return Gpu(self.name, self.platform, self.folder, self.servers, merged)

    def run(self, program: Callable[..., Any], *arguments: Any, **settings: str | int) -> Any:
        """Run a function in a process of its own; returns its answer.

        It is one of a module that can be imported from the root of the repository. Arguments and
        answer are JSON. Raises ``ProgramFailed``.
        """
        return self.start(program, *arguments, **settings).finish()

    def start(
        self,
        program: Callable[..., Any],
        *arguments: Any,
        fds: tuple[int, ...] = (),
        **settings: str | int,
    ) -> Started:
        """As ``run``, without waiting for it; ``fds`` come after the arguments."""
        return self.servers.start(program, arguments, self.having(**settings), fds)

    def script(self, text: str, *arguments: str, **settings: str | int) -> str:
        """Run Python from its first line on; returns what it printed. Raises ``ProgramFailed``."""
        done = subprocess.run(
            [sys.executable, "-c", text, *arguments],
            cwd=ROOT,
            env=self.environment(**settings),
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
        )
        if done.returncode:
            raise ProgramFailed(f"exit code {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

"""Running one of Slurm's commands: bounded in time, and deaf to the terminal's Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from slurmmesh.errors import MissingDependencyError, SubmitError

_LOOK_EVERY_S = 0.05
# A command that was interrupted gets this long to answer, so that its job is known.
_INTERRUPT_GRACE_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What a command said. ``returncode`` is None if it did not end in time and was killed."""

    returncode: int | None
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.returncode == 0

    @property
    def words(self) -> str:
        """All that it said."""
        return f"{self.stdout}\n{self.stderr}"


def is_installed(command: str, environ: Mapping[str, str]) -> bool:
    """Whether this machine has a command of Slurm."""
    return shutil.which(command, path=environ.get("PATH", os.defpath)) is not None


def run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    timeout_s: float,
    stdin: bytes = b"",
    interrupted: Callable[[], bool] = lambda: False,
) -> Answer:
    """Run a command to its end, or for ``timeout_s`` at most.

    It has a session of its own: a Ctrl-C at the terminal is for the caller, who says so by
    ``interrupted``; the command then has a few seconds to end by itself before it is killed.

    Raises:
        MissingDependencyError: the command is not installed.
        SubmitError: it cannot be run: no program of this machine, or no leave to run it.
    """
    deadline = time.monotonic() + timeout_s
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(environ),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise MissingDependencyError(
            f"{argv[0]} is not installed here: go to a machine that has Slurm's commands, or on "
            "Debian and Ubuntu `apt-get install slurm-client`"
        ) from None
    except OSError as error:
        raise SubmitError(
            f"{argv[0]} cannot be run here: {error.strerror}",
            advice=f"See what {shutil.which(argv[0], path=environ.get('PATH'))} is.",
        ) from error
    told = False
    output: bytes | None = stdin
    while True:
        try:
            out, err = process.communicate(output, timeout=_LOOK_EVERY_S)
            return Answer(process.returncode, _text(out), _text(err))
        except subprocess.TimeoutExpired:
            output = None
        now = time.monotonic()
        if not told and interrupted():
            told = True
            deadline = min(deadline, now + _INTERRUPT_GRACE_S)
        if now > deadline:
            return _kill(process)


def _kill(process: subprocess.Popen[bytes]) -> Answer:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with process:  # closes the pipes even if a stray child of the command still holds them
        try:
            out, err = process.communicate(timeout=1)
        except subprocess.TimeoutExpired as late:
            out, err = late.stdout or b"", late.stderr or b""
    return Answer(None, _text(out), _text(err))


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", errors="surrogateescape")

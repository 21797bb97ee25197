"""Running one command under a lab, as a well-behaved wrapper: same terminal, signals passed on."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence

# What a command that was asked to end (SIGTERM, SIGHUP) may take before it is killed.
_GRACE_S = 5.0
_SI_KERNEL = 128
NOT_FOUND = 127

PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def find_program(name: str, environ: Mapping[str, str]) -> str | None:
    """The program a shell with this environment would run."""
    return shutil.which(name, path=environ.get("PATH", os.defpath))


def run_command(program: str, argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run ``program`` in the foreground until it ends; return its exit code as a shell would.

    SIGTERM and SIGHUP are passed on, and SIGINT unless it is a Ctrl-C, which the terminal
    gives to both. A command that does not end within 5 seconds of SIGTERM or SIGHUP is killed.
    """
    # An inherited SIG_IGN would hide the command's end, and its exit code.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    passed_on = {s for s in PASSED_ON if signal.getsignal(s) is not signal.SIG_IGN}
    waited_for = {*passed_on, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    pid = os.posix_spawn(
        program, list(argv), dict(env), setsigmask=before, setsigdef=[signal.SIGPIPE]
    )
    return _exit_code(_follow(pid, waited_for))


def _follow(pid: int, waited_for: set[signal.Signals]) -> int:
    kill_at: float | None = None
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return status
        if kill_at is None:
            got = signal.sigwaitinfo(waited_for)
        else:
            maybe = signal.sigtimedwait(waited_for, max(0.0, kill_at - time.monotonic()))
            if maybe is None:
                os.kill(pid, signal.SIGKILL)
                return os.waitpid(pid, 0)[1]
            got = maybe
        if got.si_signo == signal.SIGCHLD:
            continue
        if got.si_signo != signal.SIGINT:
            kill_at = time.monotonic() + _GRACE_S if kill_at is None else kill_at
        elif got.si_code == _SI_KERNEL:
            continue
        os.kill(pid, got.si_signo)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code

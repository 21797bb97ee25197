"""Starting daemons from a helper that has no threads."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from slurmmesh.linux import die_with_parent


def spawn_daemon(argv: Sequence[str], env: Mapping[str, str], output: Path) -> int:
    """Run ``argv`` with its output appended to a file; it dies (SIGKILL) with this process."""

    def become() -> NoReturn:
        redirect(output)
        close_files()
        os.chdir(output.parent)
        os.execve(argv[0], list(argv), dict(env))

    return fork_child(become, signal.SIGKILL)


def fork_child(body: Callable[[], object], death_signal: signal.Signals) -> int:
    """Fork a child that runs ``body`` and exits; it gets ``death_signal`` when this process dies.

    The caller must have no threads. Signals of the child are at their defaults.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        # Python ignores it; the programs started here expect it.
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        die_with_parent(parent, death_signal)
        body()
        code = 0
    except BaseException as error:
        os.write(2, f"{type(error).__name__}: {error}\n".encode())
    finally:
        os._exit(code)


def redirect(output: Path) -> None:
    """Standard input from nowhere; standard output and error to the end of a file."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    redirect_output(output)


def redirect_output(output: Path) -> None:
    """Standard output and error to the end of a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)


def close_files() -> None:
    """Close every descriptor above the standard three."""
    # The limit on descriptors may be a billion: go no further than those in use.
    highest = max(int(fd) for fd in os.listdir("/proc/self/fd"))
    os.closerange(3, highest + 1)

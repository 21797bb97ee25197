"""How a fork server comes to be: by a fork of its host agent, or in a Python of its own.

The agent forks the first one as its first act, so that it has imported all by the time somebody
spawns. Those after it, when that one has died or is to import anew, are started afresh: a process
that has threads, locks and secrets is not to be forked.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import sys
import threading
from typing import NamedTuple, NoReturn

from slurmmesh.linux import die_with_parent, python_command

FDS_EACH = 3
"""The descriptors that come with the request for a proc: link, stdout, stderr."""
TOGETHER = 16
"""So many procs are asked for at once: the kernel counts descriptors on their way against a limit.
"""


class ForkServer(NamedTuple):
    """The process, our child, and our end of the socket to it."""

    pid: int
    sock: socket.socket

    def end(self) -> None:
        """End it and wait until it is gone."""
        self.sock.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def start_afresh(output: int, label: str) -> ForkServer:
    """One in a Python of its own. Raises OSError.

    Args:
        output: a descriptor for what it writes.
        label: stands in its command line, and so in that of each proc, for who looks at processes.
    """
    import subprocess  # here: the first server is forked

    ours, theirs = _pair()
    with theirs:
        try:
            process = subprocess.Popen(
                python_command(
                    "slurmmesh.hosts.forkserver", str(theirs.fileno()), str(os.getpid()), label
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        except BaseException:
            ours.close()
            raise
    process.returncode = 0  # it is waited for by its pid
    return ForkServer(process.pid, ours)


def fork_here() -> ForkServer | None:
    """One that is forked from this process, before it has made anything that is its own.

    None where that cannot be; one is started afresh then. It writes to our stdout and stderr
    until it is given another place.
    """
    if threading.active_count() > 1:
        return None
    try:
        ours, theirs = _pair()
    except OSError:
        return None
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        return None
    if pid == 0:
        _serve(theirs.detach(), parent)
    theirs.close()
    return ForkServer(pid, ours)


def _pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def _serve(server: int, parent: int) -> NoReturn:
    """Be the fork server: nothing of the agent is left but what it has imported."""
    code = 1
    try:
        die_with_parent(parent)
        for fd in map(int, os.listdir("/proc/self/fd")):  # not up to a limit, which may be 2**30
            if fd > 2 and fd != server:
                with contextlib.suppress(OSError):  # that of the listing is closed
                    os.close(fd)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.close(null)
        for signum in signal.valid_signals():
            if callable(signal.getsignal(signum)):
                signal.signal(signum, signal.SIG_DFL)
        atexit._clear()
        from slurmmesh.hosts.forkserver import serve

        serve(socket.socket(fileno=server))
        code = 0
    except BaseException:
        with contextlib.suppress(Exception):
            sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)

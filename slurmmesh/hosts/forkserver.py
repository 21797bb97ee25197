"""The fork server of a host: imports once, forks procs in milliseconds.

It is a process of its own, started by the host agent. It has one thread, touches no device
and runs nothing of the user but the imports that were asked for. Procs are forked by a process
between, which ends then, so that they become children of the host agent, which learns of their
deaths directly: the fork server may die without harm to the procs it made.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import random
import select
import signal
import socket
import sys
from typing import NoReturn

from slurmmesh.actors.messages import ProcWelcome
from slurmmesh.actors.proc import run_proc
from slurmmesh.actors.reloading import note_imports
from slurmmesh.actors.stdio import mark_levels, use_rank_streams
from slurmmesh.hosts.forking import FDS_EACH, TOGETHER
from slurmmesh.hosts.messages import ForkReply, ForkRequest, TakeOutput
from slurmmesh.linux import MAX_REQUEST, die_with_parent


def main() -> None:
    """Serve on the socket whose descriptor is the first argument; the second is our parent."""
    die_with_parent(int(sys.argv[2]))
    serve(socket.socket(fileno=int(sys.argv[1])))


def serve(server: socket.socket) -> None:
    """Serve requests until the socket closes."""
    server.set_inheritable(False)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    note_imports()
    use_rank_streams()  # what is imported here may hold on to them
    gc.freeze()  # the children's collector leaves these pages alone
    while True:
        data, fds, _, _ = socket.recv_fds(server, MAX_REQUEST, FDS_EACH * TOGETHER)
        if not data:
            return
        request: ForkRequest | TakeOutput = pickle.loads(data)
        if isinstance(request, TakeOutput):
            _write_to(fds)
            continue
        if len(fds) == FDS_EACH * len(request.local_ranks):
            reply = _serve(server, request, fds)
        else:
            reply = ForkReply(error="the fork server is out of descriptors")
        for fd in fds:
            os.close(fd)
        try:
            server.send(pickle.dumps(reply))
        except OSError:
            return


def _write_to(fds: list[int]) -> None:
    for fd in fds:
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _serve(server: socket.socket, request: ForkRequest, fds: list[int]) -> ForkReply:
    try:
        os.chdir(request.cwd)
        sys.path[:] = request.sys_path
        _preload(request.preload)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(AttributeError, ValueError, OSError):
                stream.flush()  # else each child would write it again
    except BaseException as error:  # a module may do anything when it is imported
        return ForkReply(error=f"{type(error).__name__}: {error}")
    try:
        read, write = os.pipe()
    except OSError as error:
        return ForkReply(error=f"no pipe: {error}")
    try:
        between = os.fork()
        if between == 0:
            os.close(read)
            _fork_procs(server, request, fds, write)
        os.waitpid(between, 0)
    except OSError as error:
        return ForkReply(error=f"cannot fork: {error}")
    else:
        os.set_blocking(read, False)  # what it had to say it has said
        return pickle.loads(os.read(read, MAX_REQUEST))
    finally:
        os.close(read)
        os.close(write)


def _preload(names: tuple[str, ...]) -> None:
    """Import what is not imported yet, and keep it shared with the children."""
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        importlib.import_module(name)
    if missing:
        gc.collect()
        gc.freeze()


def _fork_procs(
    server: socket.socket, request: ForkRequest, fds: list[int], write: int
) -> NoReturn:
    """In the process between: fork the procs, tell their pids and leave them to the host agent."""
    ended = os.pidfd_open(os.getpid())
    pids: list[int] = []
    error = ""
    try:
        for number, local_rank in enumerate(request.local_ranks):
            try:
                pid = os.fork()
            except OSError as refused:
                error = f"cannot fork: {refused}"
                break
            if pid == 0:
                os.close(write)
                first = number * FDS_EACH
                own = fds[first : first + FDS_EACH]
                _become_proc(server, request, local_rank, own, fds, ended)
            pids.append(pid)
        os.write(write, pickle.dumps(ForkReply(tuple(pids), error)))
    finally:
        os._exit(0)


def _become_proc(
    server: socket.socket,
    request: ForkRequest,
    local_rank: int,
    own: list[int],
    fds: list[int],
    ended: int,
) -> NoReturn:
    try:
        os.setsid()
        link, stdout, stderr = own
        os.dup2(stdout, 1)
        os.dup2(stderr, 2)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        sock = socket.socket(fileno=os.dup(link))
        server.close()
        for fd in (*fds, null):
            os.close(fd)
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, signal.SIG_DFL)
        mark_levels()
        os.environ["LOCAL_RANK"] = str(local_rank)
        os.environ.update(request.env)
        _new_randomness()

        def on_welcome(welcome: ProcWelcome) -> None:
            end = select.poll()
            end.register(ended)
            end.poll()  # it has nothing left to do but to fork and exit
            os.close(ended)
            die_with_parent(request.host_pid)
            os.environ.update(
                RANK=str(welcome.rank),
                WORLD_SIZE=str(welcome.region.extent.nelements),
            )

        run_proc(sock, on_welcome)
    except BaseException:
        with contextlib.suppress(Exception):
            sys.excepthook(*sys.exc_info())
        os._exit(1)


def _new_randomness() -> None:
    """Forked siblings must not draw the same random numbers."""
    random.seed()
    numpy_random = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()


if __name__ == "__main__":
    main()

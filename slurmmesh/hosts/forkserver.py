"""The fork server of a host: imports once, forks procs in milliseconds.

It is a process of its own, started by the host agent. It has one thread, touches no device
and runs nothing of the user but the imports that were asked for. Procs are forked by a process
between, which ends then, so that they become children of the host agent, which learns of their
deaths directly: the fork server may die without harm to the procs it made.

What the procs of an order are going to import by themselves (``ForkRequest.imports``) is imported
by a fork of the server, which then serves the order in its place, and ends. So the server stays
as it was, whatever an import does, and no later proc gets a module as it was before an edit.
"""

from __future__ import annotations

import atexit
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
from slurmmesh.hosts.importing import import_for_all
from slurmmesh.hosts.masks import VARIABLES
from slurmmesh.hosts.messages import ForkReply, ForkRequest, TakeOutput
from slurmmesh.linux import MAX_REQUEST, become_subreaper, die_with_parent, sweep_children
from slurmmesh.wire.reactor import print_error, say

IMPORT_S = 60.0
"""An import for all procs that takes longer is left to each of them: it may wait for the others."""
_READY = "ready"


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
    unfit: set[str] = set()
    own_path = list(sys.path)
    while taken := _take(server):
        request, fds = taken
        if isinstance(request, TakeOutput):
            _write_to(fds)
            continue
        imports = [
            name for name in request.imports if name not in sys.modules and name not in unfit
        ]
        error = _prepare(request)
        if imports and not error:
            fork = _fork_with_imports(server, request, fds, imports)
            if fork is None:
                unfit.update(imports)
            else:
                _close(fds)
                pid, of_ours = fork
                if os.waitpid(pid, 0)[1]:
                    return  # it died, and with it an order
                _import_meanwhile(server, of_ours, own_path)
                continue
        if not _answer(server, request, fds, error):
            return


def _import_meanwhile(server: socket.socket, names: list[str], path: list[str]) -> None:
    """Import modules of slurmmesh that an order needed, as long as nobody asks for procs."""
    waiting = select.poll()
    waiting.register(server, select.POLLIN)
    path_of_procs = list(sys.path)
    sys.path[:] = path
    for name in reversed(names):  # what is imported by others first: in small portions
        if not waiting.poll(0):
            importlib.import_module(name)
    sys.path[:] = path_of_procs
    gc.freeze()


def _take(server: socket.socket) -> tuple[ForkRequest | TakeOutput, list[int]] | None:
    data, fds, _, _ = socket.recv_fds(server, MAX_REQUEST, FDS_EACH * TOGETHER)
    return (pickle.loads(data), fds) if data else None


def _close(fds: list[int]) -> None:
    for fd in fds:
        os.close(fd)


def _prepare(request: ForkRequest) -> str:
    """Import what every proc from here on is to have. Returns why that cannot be."""
    try:
        os.chdir(request.cwd)
    except OSError as error:
        return f"its working directory: {error}"
    sys.path[:] = request.sys_path
    return _preload(request.preload)


def _answer(server: socket.socket, request: ForkRequest, fds: list[int], error: str = "") -> bool:
    """Serve a request for which all is imported. False if nobody is there any more."""
    if len(fds) != FDS_EACH * len(request.local_ranks):
        error = "the fork server is out of descriptors"
    reply = ForkReply(error=error) if error else _serve(server, request, fds)
    _close(fds)
    try:
        server.send(pickle.dumps(reply))
    except OSError:
        return False
    return True


def _fork_with_imports(
    server: socket.socket, request: ForkRequest, fds: list[int], imports: list[str]
) -> tuple[int, list[str]] | None:
    """Have a fork of this process serve an order, with more imported.

    Returns its pid, and which modules of slurmmesh it has imported; None if the imports are not to
    be shared: then nothing has been served.
    """
    try:
        read, write = os.pipe()
    except OSError:
        return None
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        os.close(read)
        os.close(write)
        return None
    if pid == 0:
        os.close(read)
        _serve_order(server, request, fds, imports, parent, write)
    os.close(write)
    with open(read, "rb", buffering=0) as said, open(os.pidfd_open(pid), "rb") as ended:
        waiting = select.poll()
        for each in (said, ended):
            waiting.register(each, select.POLLIN)
        if not waiting.poll(IMPORT_S * 1000):
            os.kill(pid, signal.SIGKILL)
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)  # it may have begun to serve just now
        os.set_blocking(read, False)
        if answer := said.read():
            return pid, answer.decode().split()[1:]
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _serve_order(
    server: socket.socket,
    request: ForkRequest,
    fds: list[int],
    imports: list[str],
    parent: int,
    write: int,
) -> NoReturn:
    """In a fork of the server: import, and if all is well serve this order to its end."""
    code = 1
    is_ready = False
    before = set(sys.modules)
    try:
        die_with_parent(parent)
        os.environ.update(request.env)
        with contextlib.suppress(BaseException):  # each proc finds out for itself
            if reason := import_for_all(imports, VARIABLES if request.mask else ()):
                say(f"slurmmesh host: each proc imports {', '.join(imports)}: it {reason}")
            else:
                new = [name for name in sys.modules if name not in before]
                os.write(write, " ".join([_READY, *filter(_is_ours, new)]).encode())
                is_ready = True
        if not is_ready:  # nothing is left of the attempt
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()
            become_subreaper()
            sweep_children()
        os.close(write)
        taken: tuple[ForkRequest | TakeOutput, list[int]] | None = request, fds
        while is_ready and taken:
            order, fds = taken
            assert isinstance(order, ForkRequest)
            served = _answer(server, order, fds)
            taken = _take(server) if served and order.more else None
        code = 0
    except BaseException:  # the order is lost: the server ends, too, and so its agent is told
        with contextlib.suppress(Exception):
            sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


def _is_ours(module: str) -> bool:
    """Whether it is one of those that most programs import."""
    return module.startswith(("slurmmesh.actors.", "slurmmesh.hosts."))


def _write_to(fds: list[int]) -> None:
    for fd in fds:
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def _serve(server: socket.socket, request: ForkRequest, fds: list[int]) -> ForkReply:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()  # else each child would write it again
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
        os.set_blocking(read, False)  # what it had to say it has said
        return pickle.loads(os.read(read, MAX_REQUEST))
    except BlockingIOError:
        return ForkReply(error="the process that was to fork it died")
    except OSError as error:
        return ForkReply(error=f"cannot fork: {error}")
    finally:
        os.close(read)
        os.close(write)


def _preload(names: tuple[str, ...]) -> str:
    """Import what is not imported yet, and keep it shared with the children.

    Returns why that cannot be; then the host's log has the traceback.
    """
    missing = [name for name in names if name not in sys.modules]
    for name in missing:
        try:
            importlib.import_module(name)
        except BaseException as error:  # a module may do anything when it is imported
            print_error()
            return f"{name!r} of preload cannot be imported: {type(error).__name__}: {error}"
    if missing:
        gc.collect()
        gc.freeze()
    return ""


def _fork_procs(
    server: socket.socket, request: ForkRequest, fds: list[int], write: int
) -> NoReturn:
    """In the process between: fork the procs, tell their pids and leave them to the host agent."""
    pids: list[int] = []
    error = ""
    try:
        try:
            ended = os.pidfd_open(os.getpid())
            for number, local_rank in enumerate(request.local_ranks):
                pid = os.fork()
                if pid == 0:
                    os.close(write)
                    first = number * FDS_EACH
                    own = fds[first : first + FDS_EACH]
                    _become_proc(server, request, local_rank, own, fds, ended)
                pids.append(pid)
        except OSError as refused:
            error = f"cannot fork: {refused}"
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
        if request.mask is not None:
            request.mask.apply(os.environ, local_rank)
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

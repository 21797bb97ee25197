"""A process that has imported what tests of GPUs import, and forks for each program that they run.

It loads no GPU library itself, so each fork does; to import torch each time would take seconds.

    python -m tests.gpu.forkserver SOCKET

An order is one message of JSON on a connection of its own, with descriptors for the program. On the
same connection follow, as lines of JSON, the pid, the answer, and the exit code.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

_ORDER = 1 << 16


def ends_wholly(program: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator: at its end the interpreter takes itself and its libraries apart.

    With torch that takes a third of a second. After others it does what was registered for the end.
    """
    program.ends_wholly = True  # type: ignore[attr-defined]
    return program


def request(
    path: Path, order: dict[str, Any], fds: tuple[int, ...], timeout: float
) -> socket.socket:
    """Give an order to the server at ``path``, which may not be up yet."""
    deadline = time.monotonic() + timeout
    while True:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout)
        try:
            connection.connect(str(path))
        except OSError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
            continue
        socket.send_fds(connection, [json.dumps(order).encode()], list(fds))
        return connection


def serve(path: str) -> None:
    """Until it is killed. Returns in the forks, when their program has returned."""
    importlib.import_module("torch")
    importlib.import_module("tests.gpu.programs_shared")
    gc.collect()
    gc.freeze()  # the programs collect often: only what is theirs
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the watchers
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        while True:
            connection, _ = listener.accept()
            text, fds, _, _ = socket.recv_fds(connection, _ORDER, 64)
            if os.fork() == 0:
                listener.close()
                _watch(connection, json.loads(text), fds)
                return
            connection.close()
            for fd in fds:
                os.close(fd)


def _watch(connection: socket.socket, order: dict[str, Any], fds: list[int]) -> None:
    """Fork once more, and tell how that ends; returns in the fork."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if pid:
        _tell(connection, {"pid": pid})
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        _tell(connection, {"code": code})
        os._exit(0)
    output = os.open(order["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.environ.clear()
    os.environ.update(order["environment"])
    program = getattr(importlib.import_module(order["module"]), order["name"])
    if not hasattr(program, "ends_wholly"):
        atexit.register(_leave)  # runs after what is registered later
    _tell(connection, {"answer": program(*order["arguments"], *fds)})
    connection.close()


def _leave() -> None:
    failed = hasattr(sys, "last_value")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(failed)


def _tell(connection: socket.socket, what: dict[str, Any]) -> None:
    connection.sendall(json.dumps(what).encode() + b"\n")


if __name__ == "__main__":
    serve(sys.argv[1])

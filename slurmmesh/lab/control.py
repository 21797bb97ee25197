"""One JSON line each way over the lab's control socket: what a ``Lab`` asks of its manager."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmmesh.errors import LabError, MissingDependencyError, SlurmmeshError, UsageError
from slurmmesh.lab.spec import CONTROL_SOCKET

# Written to the keeper's standard input: the lab is to outlive its owner.
DETACH = b"detach\n"

_KINDS: dict[str, type[SlurmmeshError]] = {
    kind.__name__: kind for kind in (UsageError, LabError, MissingDependencyError)
}
_MAX_BYTES = 1 << 16
_PEER_TIMEOUT_S = 5.0


def error_message(error: Exception) -> dict[str, Any]:
    """An error as data, so that it can be raised again in another process."""
    for name, kind in _KINDS.items():
        if isinstance(error, kind):
            return {"error": str(error), "kind": name}
    return {"error": f"{type(error).__name__}: {error}", "kind": LabError.__name__}


def raise_error(message: dict[str, Any]) -> None:
    """Raise what ``error_message`` made, if it is one."""
    if "error" in message:
        raise _KINDS.get(message.get("kind", ""), LabError)(message["error"])


def ask(control_socket: Path, message: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Send one request and return the answer.

    Raises:
        LabError: the lab is not running, did not answer in time, or could not do it.
        UsageError: the request makes no sense for this lab.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(timeout_s)
            sock.connect(str(control_socket))
            sock.sendall(json.dumps(message).encode() + b"\n")
            line = _read_line(sock)
    except TimeoutError as error:
        raise LabError(f"the lab did not answer within {timeout_s:.0f} s") from error
    except OSError as error:
        root = control_socket.parent.parent
        raise LabError(f"no lab is running in {root}: {error.strerror or error}") from error
    if not line:
        raise LabError(f"the lab in {control_socket.parent.parent} ended before it answered")
    answer: dict[str, Any] = json.loads(line)
    raise_error(answer)
    return answer


def listen(control_socket: Path) -> socket.socket:
    """The manager's end; the folder it lies in is the user's alone."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    sock.bind(str(control_socket))
    sock.listen(16)
    return sock


def answer_one(listener: socket.socket, handle: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Accept one request, handle it and answer; a client that misbehaves is dropped."""
    with contextlib.suppress(OSError, ValueError):
        sock, _ = listener.accept()
        with sock:
            sock.settimeout(_PEER_TIMEOUT_S)
            request = json.loads(_read_line(sock))
            try:
                answer = handle(request)
            except Exception as error:
                answer = error_message(error)
            sock.sendall(json.dumps(answer).encode() + b"\n")


def _read_line(sock: socket.socket) -> bytes:
    data = b""
    while not data.endswith(b"\n") and len(data) < _MAX_BYTES:
        chunk = sock.recv(4096)
        if not chunk:
            break
        data += chunk
    return data


def running_roots() -> list[Path]:
    """Root folders of this user's running labs, from the kernel's list of unix sockets."""
    roots = set()
    with contextlib.suppress(OSError):
        for line in Path("/proc/net/unix").read_text().splitlines():
            path = Path(line.split()[-1])
            if path.name == CONTROL_SOCKET:
                with contextlib.suppress(OSError):
                    if path.stat().st_uid == os.geteuid():
                        roots.add(path.parent.parent)
    return sorted(roots)

"""In the image: the controller's entry, and the stand-ins for Slurm's commands.

This file is copied into the job folder and run there by the image's Python, before anything is
known of that: it needs nothing but the standard library. A stand-in is called like a command of
Slurm (``srun``). It has the launcher, which is outside, run that, lends it its own output, passes
signals on, and ends as it ends. So whoever starts it sees an ordinary srun.

    inside.py SOCKET enter IMAGE VERSION MODULE PROGRAM ARGS...
    inside.py SOCKET srun|scancel|scontrol|squeue ARGS...
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import socket
import struct
import sys
from typing import Any, NoReturn

EXIT_SETUP_FAILED = 6
LONGEST_MESSAGE = 8 << 20
PASSED_ON = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCONT,
)
_LENGTH = struct.Struct("!I")
_CREDENTIALS = struct.Struct("3i")


def peer(sock: socket.socket) -> tuple[int, int]:
    """Process id and user id of the other side."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _gid = _CREDENTIALS.unpack(raw)
    return pid, uid


def packed(message: dict[str, Any]) -> bytes:
    """A message as it is sent."""
    body = json.dumps(message).encode("ascii")
    return _LENGTH.pack(len(body)) + body


def unpacked(buffer: bytearray) -> dict[str, Any] | None:
    """Take the first message out of what was received; None if it is not all there yet.

    Raises:
        ValueError: it is too long, or none.
    """
    if len(buffer) < _LENGTH.size:
        return None
    (length,) = _LENGTH.unpack_from(buffer)
    if length > LONGEST_MESSAGE:
        raise ValueError(f"a message of {length} bytes")
    end = _LENGTH.size + length
    if len(buffer) < end:
        return None
    message = json.loads(bytes(buffer[_LENGTH.size : end]))
    if not isinstance(message, dict):
        raise ValueError("no message")
    del buffer[:end]
    return message


class Launcher:
    """The connection to the launcher. OSError where there is none."""

    def __init__(self, name: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.connect("\0" + name)
        if peer(self._sock)[1] != os.getuid():
            raise PermissionError("the launcher of the job is another user's")
        self._buffer = bytearray()

    def send(self, message: dict[str, Any], descriptors: tuple[int, ...] = ()) -> None:
        """Send all of it; descriptors go with its first byte."""
        data = packed(message)
        sent = socket.send_fds(self._sock, [data], descriptors) if descriptors else 0
        self._sock.sendall(data[sent:])

    def receive(self) -> dict[str, Any]:
        """The next message; EOFError if the launcher is gone."""
        while True:
            message = unpacked(self._buffer)
            if message is not None:
                return message
            data = self._sock.recv(65536)
            if not data:
                raise EOFError("the launcher of the job is gone")
            self._buffer += data


def main() -> NoReturn:
    """Be what the first argument after the socket says."""
    socket_name, role, *words = sys.argv[1:]
    if role == "enter":
        enter(socket_name, *words)
    stand_in(socket_name, role, words)


def enter(socket_name: str, image: str, version: str, module: str, *arguments: str) -> NoReturn:
    """Be the controller, which is ``main`` of a module, if slurmmesh is in the image."""

    def fail(why: str) -> NoReturn:
        print(f"slurmmesh: the image {image} {why}", file=sys.stderr)
        sys.exit(EXIT_SETUP_FAILED)

    if sys.version_info < (3, 10):  # noqa: UP036 (nobody has asked this Python before)
        fail(f"has Python {sys.version.split()[0]}, and slurmmesh needs 3.10 or newer")
    commands = os.path.dirname(os.path.abspath(__file__))
    # As for the controller outside: no file in the working folder hides a module of Python's.
    sys.path[:] = [path for path in sys.path if path and path != commands] + [os.getcwd()]
    sys.argv = ["-c", *arguments]
    try:
        from slurmmesh._version import __version__

        run = importlib.import_module(module).main
    except ImportError as error:
        fail(f"cannot load slurmmesh ({error}): put it there by `pip install slurmmesh=={version}`")
    if __version__ != version:
        print(
            f"slurmmesh: warning: the image {image} has slurmmesh {__version__}, the submit had "
            f"{version}: `pip install slurmmesh=={version}` there if anything is odd",
            file=sys.stderr,
        )
    try:
        launcher = Launcher(socket_name)
        launcher.send({"entered": True, "environ": dict(os.environ)})
        launcher.receive()
    except (OSError, EOFError) as error:
        fail(f"cannot reach the launcher outside ({error}): it must share the node's network")
    os.environ["PATH"] = os.pathsep.join(filter(None, [commands, os.environ.get("PATH")]))
    run()
    sys.exit(0)


def stand_in(socket_name: str, command: str, words: list[str]) -> NoReturn:
    """Have a command of Slurm run outside, and end as it ends."""
    try:
        launcher = Launcher(socket_name)
        request = {
            "command": command,
            "words": words,
            "environ": dict(os.environ),
            "folder": os.getcwd(),
        }
        launcher.send(request, (1, 2))

        def pass_on(signum: int, _frame: Any) -> None:
            launcher.send({"signal": signum})

        for each in PASSED_ON:
            signal.signal(each, pass_on)
        answer = launcher.receive()
    except (OSError, EOFError) as error:
        answer = {"error": f"{error}; steps are started on the node of the controller"}
    if "error" in answer:
        print(f"{command}: error: {answer['error']}", file=sys.stderr)
        sys.exit(1)
    code = int(answer["code"])
    if code < 0:
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)


if __name__ == "__main__":
    main()

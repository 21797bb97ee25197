"""The host agent's side of the fork server: requests in order, replies as they come."""

from __future__ import annotations

import collections
import contextlib
import os
import pickle
import signal
import socket
import subprocess
from collections.abc import Callable
from typing import Any

from slurmmesh.hosts.messages import ForkReply, ForkRequest
from slurmmesh.hosts.output import Stream
from slurmmesh.linux import MAX_REQUEST, python_command
from slurmmesh.wire.reactor import READ, WRITE, Reactor

Done = Callable[[ForkReply], Any]

_AT_ONCE = 16
"""Requests on their way: the kernel counts the descriptors in them against a limit."""


class ForkClient:
    """Owns a fork server process and starts another one when it dies.

    Args:
        output: for what the server itself writes; kept open for the next one.
        label: stands in its command line, and so in that of each proc, for who looks at processes.
    """

    def __init__(self, reactor: Reactor, output: Stream, label: str) -> None:
        self._reactor = reactor
        self._output = output
        self._label = label
        self._unsent: collections.deque[tuple[bytes, list[int], Done]] = collections.deque()
        self._waiting: collections.deque[Done] = collections.deque()
        self._process: subprocess.Popen[bytes] | None = None
        self._sock: socket.socket | None = None
        self._stale = False

    @property
    def pid(self) -> int:
        """Of the server; 0 if none runs."""
        return self._process.pid if self._process else 0

    @property
    def busy(self) -> bool:
        """Whether a request has not been answered yet."""
        return bool(self._unsent or self._waiting)

    def fork(self, request: ForkRequest, fds: list[int], done: Done) -> None:
        """Ask for a proc. ``done(reply)`` is called in the loop; then ``fds`` may be closed."""
        data = pickle.dumps(request)
        if len(data) > MAX_REQUEST:
            done(ForkReply(error=f"environment and paths of {len(data)} bytes are too many"))
            return
        self._unsent.append((data, fds, done))
        self._send()

    def renew(self) -> None:
        """Have what is asked for from now on forked by another server, which imports anew."""
        if self._sock is not None:
            self._stale = True
            self._reactor.watch(self._sock.fileno(), READ, self._ready)
            self._close_if_stale()

    def close(self) -> None:
        """End the server."""
        self._stale = False
        if self._sock is not None:
            self._reactor.unwatch(self._sock.fileno())
            self._sock.close()
            self._sock = None
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def _close_if_stale(self) -> None:
        if self._stale and not self._waiting:
            self.close()

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                python_command(
                    "slurmmesh.hosts.forkserver",
                    str(theirs.fileno()),
                    str(os.getpid()),
                    self._label,
                ),
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=self._output.write_fd,
                stderr=self._output.write_fd,
            )
        ours.setblocking(False)
        self._sock = ours
        self._reactor.watch(ours.fileno(), READ, self._ready)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._send()
        if events & READ:
            self._receive()

    def _send(self) -> None:
        if self._stale:
            return  # these are for the next server
        if self._sock is None:
            try:
                self._start()
            except OSError as error:
                self._fail(f"cannot start the fork server: {error}")
                return
        assert self._sock is not None
        blocked = False
        while self._unsent and len(self._waiting) < _AT_ONCE:
            data, fds, done = self._unsent[0]
            try:
                socket.send_fds(self._sock, [data], fds)
            except BlockingIOError:
                blocked = True
                break
            except (BrokenPipeError, ConnectionError):
                return  # it died: the reading side finds out and clears up
            except OSError as error:  # this request is not to be sent
                self._unsent.popleft()
                done(ForkReply(error=f"cannot reach the fork server: {error}"))
                continue
            self._unsent.popleft()
            self._waiting.append(done)
        self._reactor.watch(self._sock.fileno(), READ | WRITE if blocked else READ, self._ready)

    def _receive(self) -> None:
        assert self._sock is not None
        try:
            data = self._sock.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            self._waiting.popleft()(pickle.loads(data))
            self._close_if_stale()
            if self._unsent:
                self._send()
            return
        self.close()
        self._fail("the fork server died")

    def _fail(self, reason: str) -> None:
        lost = [*self._waiting, *(done for _, _, done in self._unsent)]
        self._waiting.clear()
        self._unsent.clear()
        for done in lost:
            done(ForkReply(error=reason))

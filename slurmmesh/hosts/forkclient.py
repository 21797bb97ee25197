"""The host agent's side of the fork server: requests in order, replies as they come."""

from __future__ import annotations

import collections
import contextlib
import pickle
import socket
from collections.abc import Sequence
from typing import Protocol

from slurmmesh.hosts.forking import ForkServer, start_afresh
from slurmmesh.hosts.messages import ForkReply, ForkRequest, TakeOutput
from slurmmesh.hosts.output import Stream
from slurmmesh.linux import MAX_REQUEST
from slurmmesh.wire.reactor import READ, WRITE, Reactor


class Unborn(Protocol):
    """A proc that is to be forked."""

    def fds(self) -> list[int]:
        """The descriptors that it gets: link, stdout, stderr."""

    def started(self, pid: int, error: str) -> None:
        """It has been forked, or not (pid 0): the descriptors may be closed."""


class ForkClient:
    """Owns a fork server process and starts another one when it dies.

    Args:
        output: for what the server itself writes; kept open for the next one.
        label: see ``start_afresh``.
        server: one that runs already.
    """

    def __init__(
        self, reactor: Reactor, output: Stream, label: str, server: ForkServer | None
    ) -> None:
        self._reactor = reactor
        self._output = output
        self._label = label
        self._unsent: collections.deque[tuple[bytes, Sequence[Unborn]]] = collections.deque()
        self._waiting: Sequence[Unborn] = ()
        self._server: ForkServer | None = None
        self._stale = False
        if server is not None:
            with contextlib.suppress(OSError):  # it died: the reading side finds out
                socket.send_fds(server.sock, [pickle.dumps(TakeOutput())], [output.write_fd])
            self._take(server)

    @property
    def pid(self) -> int:
        """Of the server; 0 if none runs."""
        return self._server.pid if self._server else 0

    @property
    def busy(self) -> bool:
        """Whether a request has not been answered yet."""
        return bool(self._unsent or self._waiting)

    def fork(self, request: ForkRequest, procs: Sequence[Unborn]) -> None:
        """Ask for procs, at most ``TOGETHER``, of the request's local ranks.

        They are told in the loop.
        """
        data = pickle.dumps(request)
        if len(data) > MAX_REQUEST:
            text = f"environment and paths of {len(data)} bytes are too many"
            _tell(procs, ForkReply(error=text))
        elif procs:
            self._unsent.append((data, procs))
            self._send()

    def renew(self) -> None:
        """Have what is asked for from now on forked by another server, which imports anew."""
        if self._server is not None:
            self._stale = True
            self._reactor.watch(self._server.sock.fileno(), READ, self._ready)
            self._close_if_stale()

    def close(self) -> None:
        """End the server."""
        self._stale = False
        if self._server is not None:
            self._reactor.unwatch(self._server.sock.fileno())
            self._server.end()
            self._server = None

    def _close_if_stale(self) -> None:
        if self._stale and not self._waiting:
            self.close()

    def _take(self, server: ForkServer) -> None:
        server.sock.setblocking(False)
        self._server = server
        self._reactor.watch(server.sock.fileno(), READ, self._ready)

    def _ready(self, events: int) -> None:
        if events & WRITE:
            self._send()
        if events & READ:
            self._receive()

    def _send(self) -> None:
        if self._stale:
            return  # these are for the next server
        if self._server is None:
            try:
                self._take(start_afresh(self._output.write_fd, self._label))
            except OSError as error:
                self._fail(f"cannot start the fork server: {error}")
                return
        assert self._server is not None
        sock = self._server.sock
        blocked = False
        while self._unsent and not self._waiting:
            data, procs = self._unsent[0]
            try:
                socket.send_fds(sock, [data], [fd for proc in procs for fd in proc.fds()])
            except BlockingIOError:
                blocked = True
                break
            except (BrokenPipeError, ConnectionError):
                return  # it died: the reading side finds out and clears up
            except OSError as error:  # this request is not to be sent
                self._unsent.popleft()
                _tell(procs, ForkReply(error=f"cannot reach the fork server: {error}"))
                continue
            self._unsent.popleft()
            self._waiting = procs
        self._reactor.watch(sock.fileno(), READ | WRITE if blocked else READ, self._ready)

    def _receive(self) -> None:
        assert self._server is not None
        try:
            data = self._server.sock.recv(MAX_REQUEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            born, self._waiting = self._waiting, ()
            _tell(born, pickle.loads(data))
            self._close_if_stale()
            if self._unsent:
                self._send()
            return
        self.close()
        self._fail("the fork server died")

    def _fail(self, reason: str) -> None:
        lost = [*self._waiting, *(proc for _, procs in self._unsent for proc in procs)]
        self._waiting = ()
        self._unsent.clear()
        _tell(lost, ForkReply(error=reason))


def _tell(procs: Sequence[Unborn], reply: ForkReply) -> None:
    for number, proc in enumerate(procs):
        proc.started(reply.pids[number] if number < len(reply.pids) else 0, reply.error)

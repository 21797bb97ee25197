"""Connecting to a listener of another member without waiting: for loops that must not block."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from typing import Any

from slurmmesh.wire.addresses import family_of
from slurmmesh.wire.reactor import WRITE, Reactor

CONNECT_TIMEOUT_S = 10.0


class Dialing:
    """A TCP connection on its way. Made in the reactor's thread.

    Args:
        then: told the connected socket and no reason, or None and why there is none; once, unless
            it is cancelled before.
    """

    def __init__(
        self,
        reactor: Reactor,
        address: str,
        port: int,
        then: Callable[[socket.socket | None, str], Any],
    ) -> None:
        self._reactor = reactor
        self._then = then
        self._sock: socket.socket | None = socket.socket(family_of(address), socket.SOCK_STREAM)
        self._sock.setblocking(False)
        self._timer = reactor.call_later(CONNECT_TIMEOUT_S, lambda: self._end("no answer in time"))
        code = self._sock.connect_ex((address, port))
        if code in (0, errno.EINPROGRESS):
            reactor.watch(self._sock.fileno(), WRITE, self._connected)
        else:
            reactor.call_soon(self._end, os.strerror(code))

    def cancel(self) -> None:
        """Give up; nobody is told."""
        sock, self._sock = self._sock, None
        if sock is not None:
            self._timer.cancel()
            self._reactor.unwatch(sock.fileno())
            sock.close()

    def _connected(self, _events: int) -> None:
        sock = self._sock
        assert sock is not None
        code = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if code:
            self._end(os.strerror(code))
            return
        self._sock = None
        self._timer.cancel()
        self._reactor.unwatch(sock.fileno())
        self._then(sock, "")

    def _end(self, reason: str) -> None:
        if self._sock is not None:
            self.cancel()
            self._then(None, reason)

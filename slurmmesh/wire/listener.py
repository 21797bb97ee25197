"""The listener: TLS connections of peers that have to prove themselves."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any

from slurmmesh.wire.addresses import family_of
from slurmmesh.wire.reactor import READ, Reactor, say

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 1.0


class Listener:
    """Accepts TLS connections on an ephemeral port and makes a link of each.

    Args:
        make_link: called with the accepted, wrapped socket; starts the link.
    """

    def __init__(
        self,
        reactor: Reactor,
        context: ssl.SSLContext,
        make_link: Callable[[socket.socket], Any],
        address: str = "",
    ) -> None:
        self._sock = socket.create_server((address, 0), family=family_of(address), backlog=1024)
        self._sock.setblocking(False)
        self._reactor = reactor
        self._context = context
        self._make_link = make_link
        self._closed = False
        self.port: int = self._sock.getsockname()[1]

    def start(self) -> None:
        """Begin to accept. In the reactor's thread."""
        if not self._closed:
            self._reactor.watch(self._sock.fileno(), READ, self._accept)

    def close(self) -> None:
        """Stop accepting. In the reactor's thread, or when it does not run."""
        self._closed = True
        self._reactor.unwatch(self._sock.fileno())
        self._sock.close()

    def _accept(self, _events: int) -> None:
        try:
            raw, peer = self._sock.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                say(f"slurmmesh: cannot accept a connection, trying again: {error}")
                self._reactor.unwatch(self._sock.fileno())
                self._reactor.call_later(_RETRY_S, self.start)
            return  # else: whoever it was has hung up
        try:
            self._make_link(wrap(raw, self._context, server_side=True))
        except Exception as error:
            raw.close()
            say(f"slurmmesh: connection from {peer[0]} failed: {error}")


def wrap(raw: socket.socket, context: ssl.SSLContext, server_side: bool) -> ssl.SSLSocket:
    """Put TLS on a connected socket; the handshake is left to the link."""
    return context.wrap_socket(
        raw, server_side=server_side, do_handshake_on_connect=False, suppress_ragged_eofs=True
    )

"""The listener: TLS connections of peers that have to prove themselves."""

from __future__ import annotations

import errno
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from slurmmesh.wire.addresses import family_of
from slurmmesh.wire.frames import Frame
from slurmmesh.wire.identity import Credentials, peer_name, server_context
from slurmmesh.wire.links import Link
from slurmmesh.wire.reactor import READ, Reactor, say
from slurmmesh.wire.strangers import Guests, Refusals

_NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_RETRY_S = 1.0


class Listener:
    """Accepts TLS connections on an ephemeral port and makes a link of each member's.

    Whoever connects is a guest until its certificate is checked: nothing it says is decoded,
    and it is closed when its handshake takes too long (see ``Link``) or too many others come.
    The callbacks hear of known peers only; each refusal is a line on stderr, while these are few.

    Args:
        credentials: of this process, in whose job the peers must be.
        roles: who may come, see ``peer_name``.
        address: of this machine.
        admit: told the name of each peer that has proved it; raises IdentityError to refuse it.
        on_open, on_frame, on_close: see ``Link``.
        make: of the links, by the arguments of ``Link``.

    Raises:
        OSError: the address is not one of this machine.
    """

    def __init__(
        self,
        reactor: Reactor,
        credentials: Credentials,
        roles: Sequence[str],
        address: str,
        *,
        on_frame: Callable[[Link, Frame], Any],
        on_open: Callable[[Link], Any] = lambda link: None,
        on_close: Callable[[Link, str], Any] = lambda link, reason: None,
        admit: Callable[[str], Any] = lambda name: None,
        make: Callable[..., Link] = Link,
    ) -> None:
        self._make = make
        self._context = server_context(credentials)
        self._sock = socket.create_server((address, 0), family=family_of(address), backlog=1024)
        self._sock.setblocking(False)
        self._reactor = reactor
        self._roles = roles
        self._admit = admit
        self._on_open, self._on_frame, self._on_close = on_open, on_frame, on_close
        self._guests: Guests[Link] = Guests()
        self._refusals = Refusals(lambda line: say(f"slurmmesh: {line}"), reactor.clock)
        self._closed = False
        self.port: int = self._sock.getsockname()[1]

    def start(self) -> None:
        """Begin to accept. In the reactor's thread."""
        if not self._closed:
            self._reactor.watch(self._sock.fileno(), READ, self._accept)

    def close(self) -> None:
        """Stop accepting and turn the guests away; links stay. In the reactor's thread."""
        if self._closed:
            return
        self._closed = True
        self._reactor.unwatch(self._sock.fileno())
        self._sock.close()
        for guest in self._guests.all():
            guest.close()
        self._refusals.flush()

    def _accept(self, _events: int) -> None:
        try:
            raw, (address, *_) = self._sock.accept()
        except OSError as error:
            if error.errno in _NO_ROOM:
                self._refuse(f"cannot accept a connection, trying again: {error}")
                self._reactor.unwatch(self._sock.fileno())
                self._reactor.call_later(_RETRY_S, self.start)
            return  # else: whoever it was has hung up
        try:
            guest = self._make(
                self._reactor,
                wrap(raw, self._context, server_side=True),
                authenticate=self._authenticate,
                on_open=self._opened,
                on_frame=self._on_frame,
                on_close=lambda link, reason: self._ended(link, reason, address),
            )
        except Exception as error:
            raw.close()
            self._refuse(f"connection from {address} failed: {error}")
            return
        crowded_out = self._guests.add(guest, address)
        if crowded_out is not None:
            crowded_out.close("it did not prove itself before many others came")
        guest.start()

    def _authenticate(self, sock: Any) -> str:
        name = peer_name(sock, *self._roles)
        self._admit(name)
        return name

    def _opened(self, link: Link) -> None:
        self._guests.remove(link)
        self._on_open(link)

    def _ended(self, link: Link, reason: str, address: str) -> None:
        self._guests.remove(link)
        if link.peer:
            self._on_close(link, reason)
        elif not self._closed:
            words = reason if address in reason else f"{address}: {reason}"
            self._refuse(f"refused a connection: {words}")

    def _refuse(self, line: str) -> None:
        tick_in_s = self._refusals.add(line)
        if tick_in_s:
            self._reactor.call_later(tick_in_s, self._refusals.tick)


def wrap(raw: socket.socket, context: ssl.SSLContext, server_side: bool) -> ssl.SSLSocket:
    """Put TLS on a connected socket; the handshake is left to the link."""
    return context.wrap_socket(
        raw, server_side=server_side, do_handshake_on_connect=False, suppress_ragged_eofs=True
    )

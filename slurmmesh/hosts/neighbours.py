"""Links from one host agent to another: TLS, made when they are first needed."""

from __future__ import annotations

import functools
import socket
from collections.abc import Callable, Iterable
from typing import Any

from slurmmesh.errors import IdentityError
from slurmmesh.hosts.messages import FindHosts, HostsFound, Listening
from slurmmesh.wire.dialing import Dialing
from slurmmesh.wire.frames import Frame
from slurmmesh.wire.identity import Credentials, client_context, peer_name
from slurmmesh.wire.links import Link
from slurmmesh.wire.listener import Listener, wrap
from slurmmesh.wire.reactor import Reactor

Taker = Callable[[int, Link, Frame], Any]


class _Waiting:
    """Stands for the link to a host until there is one, and keeps what is posted to it."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.dialing: Dialing | None = None

    def post(self, frame: Frame) -> None:
        """Keep it for the link."""
        self.frames.append(frame)


class Neighbours:
    """The other hosts as one agent reaches them, and is reached. In the reactor's thread.

    Args:
        credentials: of this host; peers must be hosts of the same job, not revoked.
        address: of this host, at which it listens once another wants to reach it.
        tell: sends a message to the controller, which knows where the others are.
        on_frame: takes what a host says, with its index and the link.
        on_lost: told when the way to a host, of its index, is gone, and whether for good: it could
            not be made.
        on_left: told when a link that a host made is gone.
    """

    def __init__(
        self,
        reactor: Reactor,
        credentials: Credentials,
        address: str,
        tell: Callable[[Any], Any],
        on_frame: Taker,
        on_lost: Callable[[int, bool], Any],
        on_left: Callable[[Link], Any],
    ) -> None:
        self._reactor = reactor
        self._credentials = credentials
        self._address = address
        self._tell = tell
        self._on_frame, self._on_lost, self._on_left = on_frame, on_lost, on_left
        self._ways: dict[int, Link | _Waiting] = {}
        self._listener: Listener | None = None

    def link_to(self, host: int) -> Link | _Waiting:
        """The way to a host, made if there is none."""
        way = self._ways.get(host)
        if way is None:
            way = self._ways[host] = _Waiting()
            self._tell(FindHosts((host,)))
        return way

    def listen(self) -> None:
        """Accept other hosts, and tell the controller at which port."""
        if self._listener is None:
            try:
                self._listener = Listener(
                    self._reactor,
                    self._credentials,
                    ("host",),
                    self._address,
                    on_frame=lambda link, frame: self._on_frame(index_of(link.peer), link, frame),
                    on_close=lambda link, _reason: self._on_left(link),
                )
            except OSError:
                self._tell(Listening(0))
                return
            self._listener.start()
        if self._listener is not None:
            self._tell(Listening(self._listener.port))

    def found(self, found: HostsFound) -> None:
        """The controller tells where hosts are that were asked for, or that one of them is lost."""
        for host, place in found.places.items():
            way = self._ways.get(host)
            if isinstance(way, Link) and place is None:
                way.close("the controller has lost it")
            if not isinstance(way, _Waiting) or way.dialing is not None:
                continue
            if place is None:
                self._fail(host)
                continue
            address, port = place
            way.dialing = Dialing(
                self._reactor,
                address,
                port,
                functools.partial(self._dialed, host),
            )

    def _dialed(self, host: int, raw: socket.socket | None, _reason: str) -> None:
        if raw is None:
            self._fail(host)
            return

        def authenticate(sock: Any) -> str:
            name = peer_name(sock, "host")
            if index_of(name) != host:
                raise IdentityError(f"{name} answered in the place of host-{host}")
            return name

        try:
            sock = wrap(raw, client_context(self._credentials), server_side=False)
        except OSError:  # it has hung up already
            self._fail(host)
            return
        link = Link(
            self._reactor,
            sock,
            authenticate=authenticate,
            on_frame=lambda link, frame: self._on_frame(host, link, frame),
            on_close=lambda link, _reason: self._ended(host, link),
        )
        waiting, self._ways[host] = self._ways[host], link
        assert isinstance(waiting, _Waiting)
        _post_all(link, waiting.frames)
        link.start()

    def _ended(self, host: int, link: Link) -> None:
        if self._ways.get(host) is link:
            self._fail(host, for_good=not link.peer)

    def _fail(self, host: int, for_good: bool = True) -> None:
        del self._ways[host]
        self._on_lost(host, for_good)


def index_of(name: str) -> int:
    """The index of the host with this certified name."""
    return int(name.rpartition("-")[2])


def _post_all(link: Link, frames: Iterable[Frame]) -> None:
    for frame in frames:
        link.post(frame)

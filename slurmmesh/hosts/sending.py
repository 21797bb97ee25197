"""Requests of a host's procs on their way: to procs here, to other hosts, or to the controller.

Where a mesh is the controller is asked once, when something here first calls it by the hosts:
restarts do not move ranks. So the way of a mesh's requests is chosen once, too, and those of one
sender keep their order. Where hosts reach each other none of them passes the controller; between
hosts that do not (several on the controller's own machine) it passes them on. What procs ask of it
itself (``hosts/asks.py``) it answers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from slurmmesh.actors.addresses import CONTROLLER
from slurmmesh.actors.failure import refusal
from slurmmesh.errors import HostLost
from slurmmesh.hosts.errands import Errands
from slurmmesh.hosts.messages import FindMesh, MeshFound
from slurmmesh.hosts.relay import Way, origin_of
from slurmmesh.hosts.routes import Routes
from slurmmesh.wire.frames import PORTS, Frame
from slurmmesh.wire.reactor import Reactor


class Taker(Protocol):
    """The relay of this host."""

    def take(self, up: Way, frame: Frame, keep: bool = False) -> None:
        """Take a frame from above; see ``Relay.request``."""

    def has(self, mesh: int, rank: int) -> bool:
        """Whether a rank runs here."""


class Sending:
    """Sends the requests of this host's procs. In the reactor's thread.

    Args:
        host: index of this host.
        here: takes what is for this host.
        link_to: the way to another host.
        post: posts a frame to the controller, if there still is one.
        tell: sends a message to the controller.
    """

    def __init__(
        self,
        reactor: Reactor,
        host: int,
        here: Taker,
        link_to: Callable[[int], Way],
        post: Callable[[Frame], Any],
        tell: Callable[[Any], Any],
    ) -> None:
        self._reactor = reactor
        self._host = host
        self._here = here
        self._link_to = link_to
        self._post = post
        self._tell = tell
        self._errands = Errands(host + 1, self._send)
        self._routes = Routes(
            self._locate,
            self._way_to,
            self._refuse,
            self._errands.post,
            reactor.call_later,
            lambda: False,
        )
        self._found: dict[int, MeshFound] = {}
        self._ways: dict[int, Callable[[Frame], Any]] = {CONTROLLER.mesh: post}
        self._waiting: dict[int, list[Frame]] = {}

    def send(self, sender: Way, frame: Frame) -> None:
        """Send a CALL, CAST or ASK of a proc; its answers are posted there."""
        self._errands.take(sender, frame)

    def forget(self, sender: Way) -> None:
        """A proc is gone: nobody waits for its answers."""
        self._errands.forget(sender)

    def forget_mesh(self, mesh: int) -> None:
        """A mesh is over: should anybody call it yet, the controller says so."""
        self._found.pop(mesh, None)
        self._ways.pop(mesh, None)

    def found(self, found: MeshFound) -> None:
        """The controller tells where a mesh is that was asked for."""
        self._found[found.mesh] = found
        if not found.hosts:
            way = self._post
        elif all(host == self._host for host in found.hosts):
            way = functools.partial(self._here.take, self._errands)
        else:
            way = self._routes.send
        self._ways[found.mesh] = way
        for frame in self._waiting.pop(found.mesh, ()):
            way(frame)

    def answered(self, frame: Frame, host: int | None = None) -> bool:
        """Take an answer from another host, or from the controller, if it is to our requests."""
        if origin_of(frame.call) != self._host + 1:
            return False
        if host is None:
            self._errands.post(frame)
        else:
            self._routes.take(host, frame)
        return True

    def host_lost(self, host: int, for_good: bool) -> None:
        """The link to a host is gone, or there will be none."""
        if for_good:
            self._routes.host_lost(host)
        else:
            self._routes.link_lost(host)

    def post(self, frame: Frame) -> None:
        """Take an answer of this host itself; see ``Way``."""
        self._routes.take(self._host, frame)

    def _send(self, frame: Frame) -> None:
        way = self._ways.get(frame.mesh)
        if frame.flags & PORTS and not self._here.has(frame.mesh, frame.ranks[0]):
            way = self._post
        if way is not None:
            way(frame)
        elif frame.mesh in self._waiting:
            self._waiting[frame.mesh].append(frame)
        else:
            self._waiting[frame.mesh] = [frame]
            self._tell(FindMesh(frame.mesh))

    def _locate(self, mesh: int, ranks: Sequence[int]) -> dict[int, list[int]]:
        """By host; this one last, so that in a tree it passes nothing of ours on."""
        place = self._found.get(mesh, MeshFound(mesh))
        hosts, per_host = place.hosts, place.per_host
        if not hosts:
            return {}  # it is forgotten
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(hosts[rank // per_host], []).append(rank)
        if self._host in found:
            found[self._host] = found.pop(self._host)
        return found

    def _way_to(self, host: int) -> Way:
        return _Here(self._reactor, self._here, self) if host == self._host else self._link_to(host)

    def _refuse(self, frame: Frame, rank: int) -> Frame:
        found = self._found.get(frame.mesh)
        name = found.names[rank // found.per_host] if found else ""
        error = HostLost(name, "there is no way to it from another host")
        return refusal(frame, rank, name, error)


class _Here:
    """The way to this host itself: like a link, it answers later."""

    def __init__(self, reactor: Reactor, taker: Taker, up: Way) -> None:
        self._reactor = reactor
        self._taker = taker
        self._up = up

    def post(self, frame: Frame) -> None:
        """See ``Way``."""
        self._reactor.call_soon(self._taker.take, self._up, frame)

"""The controller's direct links to procs: asked for by the first call to a rank, used when up."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from slurmmesh.actors.direct import DirectLink, Place, Sink
from slurmmesh.errors import SupervisionError
from slurmmesh.hosts.meshes import MeshRecord
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Frame
from slurmmesh.wire.links import Link, same_user
from slurmmesh.wire.reactor import Reactor

MAX_LINKS = 512
"""So many direct links a controller keeps; to further ranks it speaks by their hosts."""
_NEWS_S = 5.0
"""How long the news of a death may come after the end of the link to its proc."""


class Directs:
    """Places of ranks, and the links to them.

    They have a loop of their own, run by the threads that wait for answers.

    Args:
        lock: guards the records of meshes, and here the places.
        ask: has the host of a rank make a link; its descriptor comes to ``connected``.
    """

    def __init__(self, lock: threading.RLock, ask: Callable[[MeshRecord, int], bool]) -> None:
        self._lock = lock
        self._ask = ask
        self._driver = Driver(Reactor(), "slurmmesh-calls")
        self._driver.start()
        self._count = 0

    def place(self, mesh: MeshRecord, rank: int) -> Place:
        """The place of a rank, made when it is first asked for."""
        with self._lock:
            place = mesh.places.get(rank)
            if place is None:
                place = mesh.places[rank] = Place()
            return place

    def link_to(self, mesh: MeshRecord, ranks: Sequence[int]) -> DirectLink | None:
        """The direct link for a message to these ranks; None: it goes by the hosts."""
        if len(ranks) != 1 or mesh.over is not None:
            return None
        return self.place(mesh, ranks[0]).direct

    def divide(
        self, mesh: MeshRecord, ranks: Sequence[int]
    ) -> tuple[dict[int, Place], dict[int, DirectLink]]:
        """Before a message to these ranks goes by the hosts.

        Returns:
            the places that it departs to, which are to be told when it arrives; and the ranks
            that must get it over their direct link, because something on there may not have
            arrived yet.
        """
        placed: dict[int, Place] = {}
        apart: dict[int, DirectLink] = {}
        with self._lock:
            known = mesh.places
            if len(ranks) > len(known):
                wanted = set(ranks)
                ranks = [rank for rank in known if rank in wanted]
            for rank in ranks:
                place = known.get(rank)
                if place is None:
                    continue
                if place.link is not None and not place.link.is_quiet:
                    apart[rank] = place.link
                else:
                    place.depart()
                    placed[rank] = place
            if len(ranks) == 1 and placed:
                self._want(mesh, ranks[0])
        return placed, apart

    def send(self, link: DirectLink, frame: Frame, sink: Sink | None) -> None:
        """Send a message over a direct link. Raises LinkClosed."""
        frame = replace(frame, ranks=())
        link.wait_for_room(frame, link.send_message(frame, sink))

    def _want(self, mesh: MeshRecord, rank: int) -> None:
        place = mesh.places[rank]
        if not place.asked and self._count < MAX_LINKS and not mesh.ranks[rank].gone:
            place.asked = self._ask(mesh, rank)

    def connected(self, mesh: MeshRecord, rank: int, incarnation: int, fd: int) -> None:
        """Take our end of a new link."""
        sock = socket.socket(fileno=fd)
        with self._lock:
            record, place = mesh.ranks[rank], mesh.places[rank]
            if record.gone or record.incarnation != incarnation or place.link is not None:
                sock.close()
                return
            self._count += 1

        def up(link: Link) -> None:
            assert isinstance(link, DirectLink)
            with self._lock:
                if not record.gone:
                    place.connect(link)

        def down(link: DirectLink, reason: str) -> None:
            self._down(place, link, f"the link to rank {rank} of {mesh.name!r} broke: {reason}")

        link = DirectLink(self._driver, sock, same_user, on_down=down, on_up=up)
        self._driver.reactor.call_soon(link.start)

    def lost(self, mesh: MeshRecord, rank: int, error: BaseException) -> None:
        """A rank is gone: what it said before still counts, other calls to it fail."""
        with self._lock:
            place = mesh.places.get(rank)
            link = place.disconnect() if place is not None else None
        if link is None:
            return

        def end() -> None:
            link.drain()
            link.fail_all(error)
            link.close()

        self._driver.reactor.call_soon(end)

    def stop(self) -> None:
        """End all links and their loop."""
        self._driver.stop()

    def _down(self, place: Place, link: DirectLink, reason: str) -> None:
        with self._lock:
            self._count -= 1
            if place.link is link:
                place.disconnect()
        # Who hears of the death fails them with its cause, long before this.
        self._driver.reactor.call_later(_NEWS_S, lambda: link.fail_all(SupervisionError(reason)))

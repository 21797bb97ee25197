"""The controller's end of the tree: what goes by it, and where hosts find each other."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from slurmmesh.actors.calls import CallBook
from slurmmesh.actors.failure import refusal
from slurmmesh.actors.future import Future
from slurmmesh.errors import HostLost, LinkClosed, SupervisionError
from slurmmesh.hosts.errands import Errands
from slurmmesh.hosts.meshes import MeshRecord
from slurmmesh.hosts.messages import FindHosts, FindMesh, HostsFound, Listen, Listening, MeshFound
from slurmmesh.hosts.roster import HostRecord, Roster
from slurmmesh.hosts.routes import Routes
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.gather import unmerge
from slurmmesh.wire.links import Link
from slurmmesh.wire.reactor import Reactor, in_loop_thread
from slurmmesh.wire.tree import FAN_OUT

_ERRANDS = 0xFFFF
"""Origin of the numbers of requests that the controller sends on; no host's."""


class Casting:
    """Requests of the controller that go by the hosts, and their answers.

    Args:
        lock: guards the records of hosts.
        book: who waits for answers.
        ready: the future of when ranks of a mesh are up.
        why_over: what those are told who call a mesh that is forgotten.
    """

    def __init__(
        self,
        reactor: Reactor,
        lock: threading.RLock,
        roster: Roster,
        meshes: Mapping[int, MeshRecord],
        book: CallBook,
        ready: Callable[[MeshRecord, Iterable[int]], Future[bool]],
        why_over: Callable[[int], SupervisionError],
    ) -> None:
        self._roster = roster
        self._hosts = roster.hosts
        self.errands = Errands(_ERRANDS, self._send_errand)
        self._meshes = meshes
        self._book = book
        self._ready = ready
        self._why_over = why_over
        self._directory = Directory(roster, lock)
        self.tree = Routes(
            self._locate,
            lambda host: roster.link_to(self._hosts[host]),
            self._refuse,
            self.answer,
            lambda delay, callback: reactor.call_soon(reactor.call_later, delay, callback),
            lambda: not in_loop_thread(),
        )

    @property
    def by_tree(self) -> bool:
        """Whether this job has more hosts than one sends to itself, and they reach each other."""
        if len(self._hosts) <= FAN_OUT:
            return False
        link = self._hosts[0].link
        return link is not None and not link.passes_fds

    def send(self, frame: Frame) -> list[tuple[Link, int]]:
        """Send a request down the tree; see ``Routes.send``."""
        if not frame.call:  # a cast of which nobody wants to know more, but the tree does
            frame = replace(frame, call=self._book.open_cast(frame.mesh, (), {}))
        # What builds actors follows the order to start their procs, which went straight.
        posted = self.tree.send(frame, straight=frame.kind is Kind.CREATE)
        return cast("list[tuple[Link, int]]", posted)

    def run_errand(self, host: HostRecord, frame: Frame) -> None:
        """Send a request of a host's proc on, for ranks that the host cannot reach itself."""
        if host.link is None:
            return
        if frame.mesh in self._meshes:
            self.errands.take(host.link, frame)
            return
        for rank in frame.ranks:
            answer = self._refuse(frame, rank)
            if frame.kind is Kind.CAST:
                answer = replace(answer, kind=Kind.DELIVERED, body=b"")
            with contextlib.suppress(LinkClosed):
                host.link.post(answer)

    def _send_errand(self, frame: Frame) -> None:
        if self.by_tree:
            self.send(frame)
            return
        for index, ranks in self._locate(frame.mesh, frame.ranks).items():
            try:
                self._roster.link_to(self._hosts[index]).post(replace(frame, ranks=ranks))
            except LinkClosed:
                self.errands.fail(frame.mesh, set(ranks), self._refuse)

    def take(self, host: HostRecord, frame: Frame) -> None:
        """Take an answer that a host sent."""
        if frame.call in self.tree:
            self.tree.take(host.index, frame)
        else:
            self.answer(frame)

    def answer(self, frame: Frame) -> None:
        """Give an answer to whoever waits for it."""
        if frame.call in self.errands:
            with contextlib.suppress(LinkClosed):
                self.errands.post(frame)
        elif frame.kind is Kind.RESULT:
            self._book.answer(frame)
        elif frame.kind is Kind.MERGED:
            call, mesh, actor = frame.call, frame.mesh, frame.actor
            for rank, body, buffers in unmerge(frame):
                one = Frame(Kind.RESULT, body, buffers, call, mesh, actor, (rank,))
                self._book.answer(one)
        elif frame.kind is Kind.DELIVERED:
            self._book.answer_ranks(frame.call, frame.ranks, None)
        elif frame.kind is Kind.ERROR:
            mesh_record = self._meshes.get(frame.mesh)
            if mesh_record is not None and mesh_record.over is not None:
                self._book.fail(frame.call, mesh_record.over, frame.ranks)
            else:
                self._book.answer(frame)

    def handle(self, host: HostRecord, message: Any) -> bool:
        """Take a message of a host if it is about where hosts or meshes are."""
        if isinstance(message, FindMesh):
            self._find(host, message.mesh)
            return True
        return self._directory.handle(host, message)

    def _find(self, asking: HostRecord, mesh: int) -> None:
        """Tell a host where a mesh is, once its procs are there: requests may be faster."""
        record = self._meshes.get(mesh)
        if record is None:
            self._roster.tell(asking, MeshFound(mesh))
            return
        record.asked.add(asking.index)
        indices = [rank.host for rank in record.ranks[:: record.per_host]]
        links = [host.link for host in (asking, *(self._hosts[index] for index in indices))]
        reached = {asking.index} == set(indices) or not any(
            link is not None and link.passes_fds for link in links
        )
        found = MeshFound(mesh)
        if reached:
            names = [self._hosts[index].name for index in indices]
            found = MeshFound(mesh, compact(indices), names, record.per_host)
        up = self._ready(record, range(len(record.ranks)))
        up.add_done_callback(lambda _up: self._roster.tell(asking, found))

    def host_lost(self, host: HostRecord) -> None:
        """A host is gone."""
        self._directory.host_lost(host)
        if host.link is not None:
            self.errands.forget(host.link)
        for mesh in tuple(host.meshes):  # a thread of the program may spawn on it this moment
            ranks = self._meshes[mesh].ranks
            gone = {rank for rank, record in enumerate(ranks) if record.host == host.index}
            self.errands.fail(mesh, gone, self._refuse)
        self.tree.host_lost(host.index)

    def _locate(self, mesh: int, ranks: Sequence[int]) -> dict[int, list[int]]:
        record = self._meshes.get(mesh)
        return record.by_host(tuple(ranks)) if record else {}

    def _refuse(self, frame: Frame, rank: int) -> Frame:
        record = self._meshes.get(frame.mesh)
        error: Exception
        name = ""
        if record is None:
            error = self._why_over(frame.mesh)
        else:
            host = self._hosts[record.ranks[rank].host]
            name, error = host.name, host.lost or HostLost(host.name, "its link is closed")
        return refusal(frame, rank, name, error)


class Directory:
    """Tells hosts where others listen, which are asked to when they are first looked for."""

    def __init__(self, roster: Roster, lock: threading.RLock) -> None:
        self._roster = roster
        self._lock = lock
        self._ports: dict[int, int] = {}
        self._asked: dict[int, list[HostRecord]] = {}
        self._told: dict[int, list[HostRecord]] = {}

    def handle(self, host: HostRecord, message: Any) -> bool:
        """Take a message of a host if it is for the directory."""
        if isinstance(message, FindHosts):
            for index in message.hosts:
                self._find(host, index)
        elif isinstance(message, Listening):
            self._ports[host.index] = message.port
            self._answer(host.index)
        else:
            return False
        return True

    def host_lost(self, host: HostRecord) -> None:
        """A host is gone: it cannot be reached."""
        self._ports[host.index] = 0
        self._answer(host.index)
        for told in self._told.pop(host.index, ()):
            self._roster.tell(told, HostsFound({host.index: None}))

    def _find(self, host: HostRecord, index: int) -> None:
        asking = self._asked.setdefault(index, [])
        asking.append(host)
        if index in self._ports:
            self._answer(index)
        elif len(asking) == 1 and not self._roster.tell(self._roster.hosts[index], Listen()):
            self.host_lost(self._roster.hosts[index])

    def _answer(self, index: int) -> None:
        found = self._roster.hosts[index]
        port = self._ports[index]
        place = (found.address, port) if port and found.lost is None else None
        for host in self._asked.pop(index, ()):
            self._roster.tell(host, HostsFound({index: place}))
            if place is not None:
                self._told.setdefault(index, []).append(host)


def compact(hosts: Sequence[int]) -> Sequence[int]:
    """The same indices, as a range where they are one: short to send."""
    span = range(hosts[0], hosts[0] + len(hosts)) if hosts else range(0)
    return span if list(span) == list(hosts) else tuple(hosts)

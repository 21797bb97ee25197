"""What a host agent passes on: requests to its procs and to the hosts below, answers up."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from slurmmesh.actors.backlog import is_marker
from slurmmesh.actors.failure import refusal
from slurmmesh.errors import MeshStopped, ProcDied, SupervisionError
from slurmmesh.hosts.messages import HostWelcome, ProcGone, SpawnProcs
from slurmmesh.hosts.neighbours import Neighbours, index_of
from slurmmesh.hosts.procs import HostedProc
from slurmmesh.hosts.relay import ANSWERS, REQUESTS, Relay, Way
from slurmmesh.hosts.sending import Sending
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.links import Link
from slurmmesh.wire.reactor import Reactor


class Passing:
    """The relay of a host agent, with its procs and its neighbours. In the reactor's thread.

    Args:
        address: of this host, for its neighbours.
        procs: those that run here, by mesh and rank.
        gone: how those ended that ran here.
        post: posts a frame to the controller, if there still is one.
        tell: sends a message to the controller.

    Attributes:
        neighbours: the other hosts.
        sending: sends what procs of this host call.
    """

    def __init__(
        self,
        reactor: Reactor,
        welcome: HostWelcome,
        address: str,
        procs: Mapping[tuple[int, int], HostedProc],
        gone: Mapping[tuple[int, int], ProcGone],
        post: Callable[[Frame], Any],
        tell: Callable[[Any], Any],
    ) -> None:
        self._name = welcome.name
        self._host = index_of(welcome.credentials.name)
        self._procs = procs
        self._gone = gone
        self._placed: dict[int, tuple[Sequence[int], int]] = {}
        self.neighbours = Neighbours(
            reactor, welcome.credentials, address, tell, self._heard, self._lost, self._left
        )
        self._relay = Relay(
            self._host, self, self._locate, self.neighbours.link_to, reactor.call_later
        )
        self.sending = Sending(reactor, self._host, self, self.neighbours.link_to, post, tell)

    def spawned(self, message: SpawnProcs) -> None:
        """Procs of a mesh are started: note where all of it is."""
        self._placed[message.mesh] = (message.hosts, message.per_host)

    def forget(self, mesh: int) -> None:
        """A mesh is over, and gone."""
        self._placed.pop(mesh, None)
        self.sending.forget_mesh(mesh)

    def take(self, up: Way, frame: Frame, keep: bool = False) -> None:
        """Take a frame from above; see ``Relay.request``."""
        if frame.kind in REQUESTS:
            self._relay.request(up, frame, keep)
        elif frame.kind is Kind.CLOSED:
            self._relay.closed(frame)
        elif frame.kind is Kind.AFRESH:
            self._relay.afresh(frame)

    def has(self, mesh: int, rank: int) -> bool:
        """Whether a rank runs here."""
        return (mesh, rank) in self._procs

    def answered(self, frame: Frame) -> None:
        """Take an answer of a proc of this host."""
        self._relay.reply(frame, self._host)

    def proc_gone(self, gone: ProcGone) -> None:
        """A proc has ended; how is known by now."""
        self._relay.proc_gone(gone.mesh, gone.rank)

    # -- Own, see relay.py ----------------------------------------------------------------------

    def deliver(
        self, frame: Frame, ranks: Sequence[int], sent: Callable[[list[int]], Any]
    ) -> list[int]:
        """See ``Own.deliver``."""
        there: list[int] = []
        missing: list[int] = []
        frame = replace(frame, ranks=())  # a proc knows its rank
        parts = frame.parts()
        for rank in ranks:
            proc = self._procs.get((frame.mesh, rank))
            if proc is None:
                missing.append(rank)
                continue
            if is_marker(frame):
                pass
            elif len(parts) == 1:
                proc.send_encoded(parts[0])
            else:
                proc.send(frame)
            if proc.has_unsent:
                proc.when_sent(functools.partial(sent, [rank]))
            else:
                there.append(rank)
        if there:
            sent(there)
        return missing

    def refuse(self, frame: Frame, rank: int) -> Frame:
        """See ``Own.refuse``."""
        error: Exception
        gone = self._gone.get((frame.mesh, rank))
        if gone is not None and gone.stopped:
            error = MeshStopped(f"rank {rank} of {gone.cause.mesh!r} was stopped")
        elif gone is not None:
            error = ProcDied(gone.cause)
        elif frame.mesh not in self._placed:
            error = MeshStopped("the mesh was stopped")
        else:
            error = SupervisionError(f"rank {rank} was never started on {self._name}")
        return refusal(frame, rank, self._name, error)

    # -- neighbours -----------------------------------------------------------------------------

    def _heard(self, host: int, link: Link, frame: Frame) -> None:
        if frame.kind not in ANSWERS:
            self.take(link, frame, keep=True)
        elif not self.sending.answered(frame, host):
            self._relay.reply(frame, host)

    def _lost(self, host: int, for_good: bool) -> None:
        self._relay.host_lost(host)
        self.sending.host_lost(host, for_good)

    def _left(self, link: Link) -> None:
        self._relay.up_lost(link)

    def _locate(self, mesh: int, ranks: Sequence[int]) -> dict[int, list[int]]:
        hosts, per_host = self._placed.get(mesh, ((), 1))
        if not hosts:  # the controller sends only to the hosts concerned
            return {self._host: list(ranks)}
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(hosts[rank // per_host], []).append(rank)
        return found

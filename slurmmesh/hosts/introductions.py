"""Direct links between processes: who must do what so that a caller reaches a rank.

On one host the agent gives both the ends of a socket pair. To a rank on another host the caller
dials: its proc listens from the first time on that somebody wants to reach it so.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.future import Future
from slurmmesh.actors.messages import Connect, Connected, Door, OpenDoor, TakeLink

if TYPE_CHECKING:
    from slurmmesh.hosts.meshes import MeshRecord
    from slurmmesh.hosts.roster import HostRecord, Roster

_Rank = tuple[int, int, int]
"""Mesh, rank and incarnation."""


class Introductions:
    """The controller's part. In its reactor's thread, but for ``ask``.

    Args:
        meshes: by their ids.
        dial: makes the controller's own link.
        call_soon: runs something in the reactor's thread.
    """

    def __init__(
        self,
        roster: Roster,
        meshes: Mapping[int, MeshRecord],
        dial: Callable[[Door], Any],
        call_soon: Callable[..., Any],
    ) -> None:
        self._roster = roster
        self._meshes = meshes
        self._dial = dial
        self._call_soon = call_soon
        self._doors: dict[_Rank, Future[Door | None]] = {}

    def ask(self, mesh: int, rank: int) -> bool:
        """Have a link made from the controller to a rank; whether one may come."""
        host = self._host_of(mesh, rank)
        if host is None or host.link is None:
            return False
        if host.link.passes_fds:
            return self._roster.tell(host, Connect(mesh, rank, CONTROLLER))
        self._call_soon(self._reach, mesh, rank)
        return True

    def _reach(self, mesh: int, rank: int) -> None:
        host = self._host_of(mesh, rank)
        if host is None:
            return

        def found(future: Future[Door | None]) -> None:
            door = future.get(0)
            if door is not None:
                self._dial(door)

        self._door(host, mesh, rank).add_done_callback(found)

    def introduce(self, caller: ProcessId, mesh: int, rank: int) -> Future[Door | None] | None:
        """A proc wants to reach a rank: what it must dial; None if a link comes to it, or none."""
        theirs, host = self._host_of(caller.mesh, caller.rank), self._host_of(mesh, rank)
        if theirs is None or host is None or host.link is None:
            return None
        if theirs is host:
            self._roster.tell(host, Connect(mesh, rank, caller))
            return None
        if host.link.passes_fds:
            return None  # hosts of one machine have no way to each other but by the controller
        return self._door(host, mesh, rank)

    def opened(self, door: Door) -> None:
        """A proc listens; its host tells at which address."""
        future = self._doors.get((door.mesh, door.rank, door.incarnation))
        if future is not None:
            future.set_result(door if door.port else None)

    def forget(self, mesh: int, rank: int, incarnation: int) -> None:
        """A proc is gone."""
        future = self._doors.pop((mesh, rank, incarnation), None)
        if future is not None:
            future.set_result(None)

    def _door(self, host: HostRecord, mesh: int, rank: int) -> Future[Door | None]:
        who = mesh, rank, self._meshes[mesh].ranks[rank].incarnation
        future = self._doors.get(who)
        if future is None:
            future = self._doors[who] = Future("a direct link")
            if not self._roster.tell(host, OpenDoor(mesh, rank)):
                future.set_result(None)
        return future

    def _host_of(self, mesh: int, rank: int) -> HostRecord | None:
        """Where a rank runs; None if it does not."""
        record = self._meshes[mesh].ranks[rank] if mesh in self._meshes else None
        if record is None or record.gone:
            return None
        return self._roster.hosts[record.host]


class Pairs:
    """A host agent's part: socket pairs, and word of doors. In the reactor's thread.

    Args:
        procs: those that run here, by mesh and rank.
        tell: sends a message, with descriptors, to the controller.
        address: of this host.
    """

    def __init__(
        self,
        procs: Mapping[tuple[int, int], Any],
        tell: Callable[..., Any],
        address: str,
        identity: str,
    ) -> None:
        self._procs = procs
        self._tell = tell
        self._address = address
        self._identity = identity

    def connect(self, message: Connect) -> None:
        """Give a proc and its caller, the controller or another proc, the two ends of a link."""
        proc = self._procs.get((message.mesh, message.rank))
        caller = message.caller
        to = None if caller == CONTROLLER else self._procs.get((caller.mesh, caller.rank))
        if proc is None or (to is None and caller != CONTROLLER):
            return  # who asked will hear why
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            return  # out of descriptors: it works without
        proc.hand_over(TakeLink(), theirs.detach())
        answer = Connected(message.mesh, message.rank, proc.incarnation)
        if to is not None:
            to.hand_over(answer, ours.detach())
        else:
            self._tell(answer, ours.detach())

    def open_door(self, message: OpenDoor) -> None:
        """Have a proc listen for callers of other hosts."""
        proc = self._procs.get((message.mesh, message.rank))
        if proc is not None:
            proc.say(message)

    def door_opened(self, proc: Any, port: int) -> None:
        """A proc says at which port it listens."""
        self._tell(
            Door(proc.mesh, proc.rank, proc.incarnation, self._address, port, self._identity)
        )

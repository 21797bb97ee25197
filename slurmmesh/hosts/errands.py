"""Requests that are sent on for somebody else, and their answers brought back.

A host agent runs the errands of its procs: calls and casts that their actors make by the hosts, and
what they ask of the controller.
The controller runs those of the hosts that they cannot run themselves.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace

from slurmmesh.hosts.relay import ORIGIN_BITS, Way
from slurmmesh.wire.frames import ACKED, Frame, Kind


@dataclass
class _Errand:
    """A request under way: who sent it, under which number, and the ranks that owe an answer."""

    sender: Way
    call: int
    mesh: int
    actor: int
    waiting: set[int]


class Errands:
    """Numbers requests anew, sends them, and gives the answers to whom they belong.

    It is a ``Way``: what the answers are posted to. In the reactor's thread.

    Args:
        origin: of the numbers, see ``origin_of``.
        send: sends a request.
    """

    def __init__(self, origin: int, send: Callable[[Frame], object]) -> None:
        self._numbers = itertools.count(origin << ORIGIN_BITS | 1)
        self._send = send
        self._open: dict[int, _Errand] = {}

    def __contains__(self, call: int) -> bool:
        """Whether a request of that number is under way."""
        return call in self._open

    def take(self, sender: Way, frame: Frame) -> None:
        """Send a request on. A cast is acknowledged if it has a number."""
        number = next(self._numbers)
        wanted = frame.kind is Kind.CALL or frame.call
        if wanted:
            ranks = set(frame.ranks)
            self._open[number] = _Errand(sender, frame.call, frame.mesh, frame.actor, ranks)
        acked = ACKED if frame.kind is Kind.CAST and frame.call else 0
        self._send(replace(frame, call=number, flags=frame.flags | acked))

    def post(self, frame: Frame) -> None:
        """Take an answer."""
        errand = self._open.get(frame.call)
        if errand is None or (frame.kind is Kind.DELIVERED and errand.call == 0):
            return
        errand.waiting.difference_update(frame.ranks)
        if not errand.waiting:
            del self._open[frame.call]
        errand.sender.post(replace(frame, call=errand.call))

    def forget(self, sender: Way) -> None:
        """A sender is gone: nobody waits for its answers."""
        self._open = {n: each for n, each in self._open.items() if each.sender is not sender}

    def fail(self, mesh: int, ranks: set[int], refuse: Callable[[Frame, int], Frame]) -> None:
        """These ranks will not answer any more."""
        for number, errand in list(self._open.items()):
            if errand.mesh == mesh:
                for rank in errand.waiting & ranks:
                    request = Frame(Kind.CALL, call=number, mesh=mesh, actor=errand.actor)
                    self.post(refuse(request, rank))

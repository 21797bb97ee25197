"""Passing requests on to the hosts below and to a host's own procs, and answers back up.

Each host agent relays, and looks at headers only. Who sends a request in the first place, and so
numbers it, is told in ``hosts/routes.py``; its number is the same at each relay, so a request that
comes again by another way is known, and no rank gets it twice.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from slurmmesh.errors import LinkClosed
from slurmmesh.wire.frames import ACKED, AGAIN, SOON, Frame, Kind
from slurmmesh.wire.gather import Gather
from slurmmesh.wire.tree import FAN_OUT, plan

CLOSE_AFTER_S = 0.1
"""How long the news that requests are over waits for more of it, in seconds."""
MOMENT_S = 0.02
"""How long answers to a request that wants them SOON wait for each other, in seconds."""
FORGET_AFTER_S = 60.0
"""How long a request whose way up broke is remembered: it may come again by another."""


REQUESTS = frozenset({Kind.CALL, Kind.CAST, Kind.CREATE})
ANSWERS = frozenset({Kind.RESULT, Kind.ERROR, Kind.MERGED, Kind.DELIVERED, Kind.RETURNED})

ORIGIN_BITS = 48
"""Number of bits of ``call`` that count a sender's requests; above them is the sender."""


def origin_of(call: int) -> int:
    """The sender of a request: 0 is the controller, ``n + 1`` the agent of host ``n``."""
    return call >> ORIGIN_BITS


class Way(Protocol):
    """What frames can be posted to: a link, or what stands for one."""

    def post(self, frame: Frame) -> Any:
        """Send without waiting; LinkClosed if that is known to be impossible."""


class Own(Protocol):
    """The procs of this host."""

    def deliver(
        self, frame: Frame, ranks: Sequence[int], sent: Callable[[list[int]], Any]
    ) -> list[int]:
        """Pass a frame to ranks; returns those that are not there.

        ``sent(ranks)`` is called, now or later, when the sockets of their procs have taken it.
        """

    def refuse(self, frame: Frame, rank: int) -> Frame:
        """The ERROR frame that says why a rank is not there."""


class Closer:
    """Tells hosts below which requests are over: their answers have arrived at the top."""

    def __init__(
        self, link_to: Callable[[int], Way], call_later: Callable[[float, Callable[[], Any]], Any]
    ) -> None:
        self._link_to = link_to
        self._call_later = call_later
        self._over: dict[int, list[int]] = {}

    def close(self, call: int, heads: Iterable[int]) -> None:
        """The request ``call`` is over; it had been sent to these hosts."""
        for head in heads:
            if not self._over:
                self._call_later(CLOSE_AFTER_S, self._tell)
            self._over.setdefault(head, []).append(call)

    def _tell(self) -> None:
        over, self._over = self._over, {}
        for head, calls in over.items():
            with contextlib.suppress(LinkClosed):
                body = struct.pack(f"<{len(calls)}Q", *calls)
                self._link_to(head).post(Frame(Kind.CLOSED, body))


def closed_calls(frame: Frame) -> tuple[int, ...]:
    """The requests that a CLOSED frame names."""
    return struct.unpack(f"<{len(frame.body) // 8}Q", frame.body)


class _Passed:
    """A request that was passed on."""

    __slots__ = ("acked", "gather", "heads", "mesh", "request", "up")

    def __init__(self, request: Frame, up: Way, keep: bool) -> None:
        self.acked = request.kind is Kind.CAST or bool(request.flags & ACKED)
        self.gather = Gather(request, self.acked, keep)
        self.request = replace(request, body=b"", buffers=(), ranks=())
        self.up = up
        self.mesh = request.mesh
        self.heads: list[int] = []


class Relay:
    """The relay of one host. All calls in the reactor's thread.

    Args:
        host: its index.
        own: its procs.
        locate: the hosts of these ranks of a mesh, with their ranks.
        link_to: the link to another host; LinkClosed where there is none.
        fan_out: see ``plan``.
    """

    def __init__(
        self,
        host: int,
        own: Own,
        locate: Callable[[int, Sequence[int]], dict[int, list[int]]],
        link_to: Callable[[int], Way],
        call_later: Callable[[float, Callable[[], Any]], Any],
        fan_out: int = FAN_OUT,
    ) -> None:
        self._host = host
        self._own = own
        self._locate = locate
        self._link_to = link_to
        self._call_later = call_later
        self._fan_out = fan_out
        self._closer = Closer(link_to, call_later)
        self._passed: dict[int, _Passed] = {}
        self._afresh: dict[int, int] = {}
        self._holding: set[int] = set()

    def request(self, up: Way, frame: Frame, keep: bool = False) -> None:
        """Take a request from above.

        Args:
            up: where answers go.
            keep: ``up`` may break while both sides live on, so keep what went up until it is
                known to have arrived.
        """
        if not frame.call:  # a cast of which nobody wants to know more
            self._own.deliver(frame, frame.ranks, lambda _ranks: None)
            return
        passed = self._passed.get(frame.call)
        again = frame.flags & AGAIN
        if not again and (
            passed is not None or frame.call <= self._afresh.get(origin_of(frame.call), 0)
        ):
            return  # late: it came by another way meanwhile, or will
        ranks: Sequence[int] = frame.ranks
        ups: list[Frame] = []
        if passed is None:
            passed = self._passed[frame.call] = _Passed(frame, up, keep)
        else:
            passed.up = up
            ranks = passed.gather.unknown(frame.ranks)
            ups = passed.gather.again(frame.ranks)
        if ranks:
            ups += self._pass_on(passed, frame, ranks)
        self._send_up(frame.call, passed, ups)

    def afresh(self, frame: Frame) -> None:
        """Take an AFRESH frame from above: of its sender's requests, those up to this one that
        have not come come by another way, in order; what comes by the old one is late."""
        self._afresh[origin_of(frame.call)] = max(
            frame.call, self._afresh.get(origin_of(frame.call), 0)
        )
        for host, ranks in self._locate(frame.mesh, frame.ranks).items():
            if host != self._host:
                with contextlib.suppress(LinkClosed):
                    self._link_to(host).post(_for(frame, ranks))

    def reply(self, frame: Frame, host: int) -> None:
        """Take what came up from a host below, or from a proc of this host itself."""
        passed = self._passed.get(frame.call)
        if passed is not None:
            ups = passed.gather.take(frame, host)
            if ups or passed.gather.done or passed.request.flags & SOON:
                self._send_up(frame.call, passed, ups)

    def _let_go(self) -> None:
        """What answers to these requests are here have waited for others long enough."""
        holding, self._holding = self._holding, set()
        for call in holding:
            passed = self._passed.get(call)
            if passed is not None:
                self._send_up(call, passed, passed.gather.flush())

    def closed(self, frame: Frame) -> None:
        """Take a CLOSED frame from above."""
        for call in closed_calls(frame):
            self._forget(call)

    def proc_gone(self, mesh: int, rank: int) -> None:
        """A proc of this host has ended: it answers nothing more."""
        for call, passed in list(self._passed.items()):
            if passed.mesh == mesh and passed.gather.owes(rank, self._host):
                self._send_up(call, passed, self._refuse(passed, [rank]))

    def host_lost(self, host: int) -> None:
        """The link to a host below is gone."""
        for call, passed in list(self._passed.items()):
            if host in passed.heads:
                self._send_up(call, passed, passed.gather.lost(host))

    def up_lost(self, up: Way) -> None:
        """A link from above is gone: what came by it may come again by another way."""
        for call, passed in list(self._passed.items()):
            if passed.up is up:
                self._call_later(FORGET_AFTER_S, functools.partial(self._forget_if, call, up))

    # -- inside -----------------------------------------------------------------------------------

    def _pass_on(self, passed: _Passed, frame: Frame, ranks: Sequence[int]) -> list[Frame]:
        hosts = self._locate(frame.mesh, ranks)
        mine = hosts.pop(self._host, None)
        ups: list[Frame] = []
        # Those below first: the way to them is the longer one.
        for branch in plan(hosts, self._fan_out) if hosts else ():
            passed.gather.add(branch.ranks, branch.head)
            passed.heads.append(branch.head)
            try:
                self._link_to(branch.head).post(_for(frame, branch.ranks))
            except LinkClosed:
                # Before the news of it has come. What went there earlier goes back first.
                self.host_lost(branch.head)
        if mine:
            passed.gather.add(mine, self._host)
            missing = self._own.deliver(
                frame if not hosts and len(mine) == len(frame.ranks) else _for(frame, mine),
                mine,
                lambda ranks: self._sent(frame.call, ranks),
            )
            if missing:
                ups += self._refuse(passed, missing)
        return ups

    def _sent(self, call: int, ranks: list[int]) -> None:
        """The sockets of these procs have taken their request."""
        passed = self._passed.get(call)
        if passed is not None and passed.acked:
            told = _empty(passed.request, Kind.DELIVERED, tuple(ranks))
            self._send_up(call, passed, passed.gather.take(told, self._host))

    def _refuse(self, passed: _Passed, ranks: Iterable[int]) -> list[Frame]:
        """Ranks of this host that are not there: a cast to them is over, a call fails."""
        ups = []
        for rank in ranks:
            if passed.request.kind is Kind.CAST:
                told = _empty(passed.request, Kind.DELIVERED, (rank,))
            else:
                told = self._own.refuse(passed.request, rank)
            ups += passed.gather.take(told, self._host)
        return ups

    def _send_up(self, call: int, passed: _Passed, ups: Iterable[Frame]) -> None:
        with contextlib.suppress(LinkClosed):  # it may be asked for again by another way
            for frame in ups:
                passed.up.post(frame)
        if passed.gather.done and not passed.gather.keeps and not passed.heads:
            self._passed.pop(call, None)
        elif passed.request.flags & SOON and passed.gather.holds:
            if not self._holding:
                self._call_later(MOMENT_S, self._let_go)
            self._holding.add(call)

    def _forget(self, call: int) -> None:
        passed = self._passed.pop(call, None)
        if passed is not None:
            self._closer.close(call, passed.heads)

    def _forget_if(self, call: int, up: Way) -> None:
        passed = self._passed.get(call)
        if passed is not None and passed.up is up:
            self._forget(call)


def _for(frame: Frame, ranks: Sequence[int]) -> Frame:
    """The part of a request for these ranks."""
    return replace(frame, ranks=tuple(ranks), flags=frame.flags & 0xFF, fds=())


def _empty(frame: Frame, kind: Kind, ranks: tuple[int, ...]) -> Frame:
    return Frame(kind, b"", (), frame.call, frame.mesh, frame.actor, ranks)

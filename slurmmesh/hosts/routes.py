"""How a sender's requests reach the hosts: straight, or down the tree; and again, if need be.

The controller has one for its calls, a host agent one for those of its procs. What it sends is
numbered for the whole job: ``origin`` in the upper bits of a frame's ``call``.

A request stays in the books until it is delivered, so that what a dead host has not passed on
goes to the hosts below it straight. Requests to a host arrive in the order they are sent: as
long as one is under way, no other goes to that host by another way; it is held.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import replace
from typing import Any

from slurmmesh.errors import LinkClosed
from slurmmesh.hosts.relay import Closer, Way
from slurmmesh.wire.frames import ACKED, AGAIN, BROKEN, SOON, STREAM, URGENT, Frame, Kind
from slurmmesh.wire.gather import Gather
from slurmmesh.wire.tree import FAN_OUT, Branch, plan

HELD_BYTES = 64 << 20
"""So much may be held; then a sending thread waits, unless it is the reactor's."""


class _Path:
    """One way by which hosts are reached, and how many requests are under way there."""

    __slots__ = ("broken", "hosts", "under_way")

    def __init__(self, hosts: tuple[int, ...]) -> None:
        self.hosts = hosts
        self.under_way = 0
        self.broken = False


class _Sent:
    """A request that is not over."""

    __slots__ = ("delivered", "frame", "gather", "heads", "paths")

    def __init__(self, frame: Frame, paths: list[_Path]) -> None:
        self.frame = frame
        self.paths = paths
        self.delivered = False
        self.heads: set[int] = set()
        # Nothing waits here for anything: the caller takes merged answers as they come.
        self.gather = Gather(replace(frame, flags=frame.flags | STREAM), acked=True)


class Routes(Container[int]):
    """Sends requests to many ranks and sees to it that each gets them once, in order.

    Safe to use from any thread.

    Args:
        locate: the hosts of these ranks of a mesh, with their ranks.
        link_to: the link to a host; LinkClosed where there is none.
        refuse: the ERROR frame for a rank whose host is lost.
        answer: told each answer once, without a lock held; of a cast, once of each rank that it
            has got it, by a DELIVERED.
        may_wait: whether the calling thread may wait for room.
    """

    def __init__(
        self,
        locate: Callable[[int, Sequence[int]], dict[int, list[int]]],
        link_to: Callable[[int], Way],
        refuse: Callable[[Frame, int], Frame],
        answer: Callable[[Frame], Any],
        call_later: Callable[[float, Callable[[], Any]], Any],
        may_wait: Callable[[], bool],
        fan_out: int = FAN_OUT,
    ) -> None:
        self._locate = locate
        self._link_to = link_to
        self._refuse = refuse
        self._answer = answer
        self._may_wait = may_wait
        self._fan_out = fan_out
        self._lost: set[int] = set()
        self._sent: dict[int, _Sent] = {}
        self._paths: dict[int, _Path] = {}  # the last by which each host was reached
        self._held: deque[tuple[Frame, bool]] = deque()
        self._held_bytes = 0
        self._may_release = False
        # Links that failed, and the hosts that are not reached by them: None for all.
        self._broken: deque[tuple[int, set[int] | None]] = deque()
        self._last = 0
        self._unheard: deque[Frame] = deque()
        self._closer = Closer(link_to, call_later)
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)

    def __contains__(self, call: object) -> bool:
        """Whether a request is in the books."""
        return call in self._sent

    def send(self, frame: Frame, straight: bool = False) -> list[tuple[Way, Any]]:
        """Send a request without waiting for the links; returns what was posted where.

        Its buffers are copied: the caller may change what they are views of.

        Args:
            straight: to each host by itself, however many there are, and never waiting for room,
                as orders (URGENT) do not: who sends those may hold locks.
        """
        frame = replace(
            frame,
            buffers=[bytes(buffer) for buffer in frame.buffers],
            flags=frame.flags & (STREAM | SOON | URGENT | BROKEN) | ACKED,
        )
        with self._lock:
            if not (straight or frame.flags & URGENT) and self._may_wait():
                self._room.wait_for(lambda: self._held_bytes < HELD_BYTES)
            posted = [] if self._held else self._try(frame, straight)
            if posted is None or self._held:
                self._held.append((frame, straight))
                self._held_bytes += _size(frame)
            self._settle()
        self._tell()
        return posted or []

    def take(self, host: int, frame: Frame) -> None:
        """Take an answer from a host; what of it is new to the caller is told."""
        with self._lock:
            sent = self._sent.get(frame.call)
            if sent is not None and frame.kind is Kind.RETURNED:
                owing = sent.gather.ranks_by(host)
                back = set(frame.ranks).intersection(owing)
                self._broken.append((host, set(self._locate(frame.mesh, tuple(back)))))
            elif sent is not None:
                self._note(sent, sent.gather.take(frame, host))
            self._settle()
        self._tell()

    def host_lost(self, host: int) -> None:
        """A host is gone: its ranks fail, and what it was to pass on goes another way."""
        with self._lock:
            self._lost.add(host)
            self._broken.append((host, None))
            self._settle()
        self._tell()

    def link_lost(self, host: int) -> None:
        """The link to a host is gone, which may live on."""
        with self._lock:
            self._broken.append((host, None))
            self._settle()
        self._tell()

    def _tell(self) -> None:
        while self._unheard:
            self._answer(self._unheard.popleft())

    # -- with the lock held -----------------------------------------------------------------------

    def _settle(self) -> None:
        """See to what came up meanwhile; not amid a request, so that each stays in order."""
        while self._broken or self._may_release:
            if self._broken:
                self._send_anew(*self._broken.popleft())
            else:
                self._release()

    def _send_anew(self, head: int, hosts: set[int] | None) -> None:
        """All that these hosts have not answered by a link goes to them by themselves, in order."""
        for sent in [sent for sent in self._sent.values() if head in sent.heads]:
            there = self._locate(sent.frame.mesh, sent.gather.ranks_by(head))
            back = {host: there[host] for host in there if hosts is None or host in hosts}
            sent.gather.give_back([rank for ranks in back.values() for rank in ranks])
            for path in sent.paths:
                path.broken = True
            refused = [rank for host in self._lost & back.keys() for rank in back.pop(host)]
            again = replace(sent.frame, flags=sent.frame.flags | AGAIN)
            self._post(sent, again, plan(back, len(back)), refused)

    def _try(self, frame: Frame, straight: bool) -> list[tuple[Way, Any]] | None:
        """Send it; None if that could be out of order."""
        hosts = self._locate(frame.mesh, frame.ranks)
        if hosts:
            refused = [rank for host in self._lost & hosts.keys() for rank in hosts.pop(host)]
        else:
            refused = list(frame.ranks)  # the mesh is over, and forgotten
        fan_out = len(hosts) if straight else self._fan_out
        paths = self._paths_to(tuple(hosts), fan_out)
        if paths is None:
            return None
        self._last = max(frame.call, self._last)
        sent = self._sent[frame.call] = _Sent(frame, paths)
        for path in paths:
            path.under_way += 1
            self._paths.update(dict.fromkeys(path.hosts, path))
        return self._post(sent, frame, plan(hosts, fan_out), refused)

    def _paths_to(self, hosts: tuple[int, ...], fan_out: int) -> list[_Path] | None:
        """The ways to these hosts; None if something is under way by another."""
        wanted = [hosts] if len(hosts) > fan_out else [(host,) for host in hosts]
        paths = []
        for group in wanted:
            last = {self._paths.get(host) for host in group}
            busy = [path for path in last if path is not None and path.under_way]
            if not busy:
                paths.append(_Path(group))
            elif len(last) == 1 and busy[0].hosts == group and not busy[0].broken:
                paths.append(busy[0])
            else:
                return None
        return paths

    def _post(
        self, sent: _Sent, frame: Frame, branches: Sequence[Branch], refused: Sequence[int]
    ) -> list[tuple[Way, Any]]:
        # All are noted before the first is sent: what goes wrong on the way is news of a whole.
        sent.gather.add(refused, None)
        for head, ranks in branches:
            sent.gather.add(ranks, head)
            sent.heads.add(head)
        posted: list[tuple[Way, Any]] = []
        for head, ranks in branches:
            try:
                way = self._link_to(head)
                if frame.flags & AGAIN:
                    afresh = Frame(Kind.AFRESH, call=self._last, mesh=frame.mesh, ranks=ranks)
                    way.post(afresh)
                posted.append((way, way.post(replace(frame, ranks=ranks))))
            except LinkClosed:
                if frame.flags & AGAIN:  # sent straight: there is no other way
                    self._lost.add(head)
                self._broken.append((head, None))
        self._note(sent, self._fail(sent, refused))
        return posted

    def _fail(self, sent: _Sent, ranks: Sequence[int]) -> list[Frame]:
        """Ranks whose hosts are lost: a cast to them is over, a call fails."""
        request = replace(sent.frame, ranks=())
        if request.kind is Kind.CAST:
            told = [replace(request, kind=Kind.DELIVERED, ranks=tuple(ranks), body=b"", buffers=())]
        else:
            told = [self._refuse(request, rank) for rank in ranks]
        return [up for frame in told for up in sent.gather.take(frame, None)]

    def _note(self, sent: _Sent, ups: Iterable[Frame]) -> None:
        """What came of a request: news for the caller, and perhaps its end."""
        is_cast = sent.frame.kind is Kind.CAST
        self._unheard += [frame for frame in ups if is_cast or frame.kind is not Kind.DELIVERED]
        if not (sent.gather.under_way or sent.delivered):
            sent.delivered = True
            self._delivered(sent)
        if sent.gather.done and self._sent.pop(sent.frame.call, None) is not None:
            self._closer.close(sent.frame.call, sent.heads)

    def _delivered(self, sent: _Sent) -> None:
        paths, sent.paths = sent.paths, []
        sent.frame = replace(sent.frame, body=b"", buffers=())
        for path in paths:
            path.under_way -= 1
        self._may_release = True

    def _release(self) -> None:
        """Send what was held and may go now."""
        self._may_release = False
        while self._held:
            frame, straight = self._held.popleft()
            if self._try(frame, straight) is None:
                self._held.appendleft((frame, straight))
                break
            self._held_bytes -= _size(frame)
        self._room.notify_all()


def _size(frame: Frame) -> int:
    return sum(map(len, (frame.body, *frame.buffers)))

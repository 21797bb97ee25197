"""The logs of a host: what its ranks write goes into its file and, where asked for, to the
controller.

To the controller one frame is under way at a time. What comes meanwhile is kept for the next, up
to a bound for each rank, so one that floods takes no room of others; what is over it is counted.
"""

from __future__ import annotations

import collections
import contextlib
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field

from slurmmesh.errors import LinkClosed
from slurmmesh.hosts.messages import HostWelcome, RankLines, StreamLogs
from slurmmesh.hosts.output import Levels, LogFile, Stream
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.links import Link
from slurmmesh.wire.reactor import Reactor

UNMARKED = {1: 20, 2: 40}
"""By their descriptor, what lines count as that did not come through ``logging``: INFO, ERROR."""

_GATHER_S = 0.05
_FRAME_BYTES = 1 << 16
_RANK_BYTES = 1 << 16
_SHARE_BYTES = 1 << 12
_MAX_LINE = 2000
_OVERHEAD = 100


@dataclass
class _Waiting:
    """Lines of one rank that are to be sent; ``size`` in bytes, roughly."""

    lines: collections.deque[tuple[int, float, bytes]] = field(default_factory=collections.deque)
    size: int = 0
    dropped: int = 0

    def add(self, fd: int, at: float, line: bytes) -> None:
        if self.dropped or self.size >= _RANK_BYTES:
            self.dropped += 1  # and all that comes before the next frame: no holes in between
            return
        self.lines.append((fd, at, line[:_MAX_LINE]))
        self.size += _cost(line)

    def take(self, size: int) -> list[tuple[int, float, bytes]]:
        """Lines of this size in all, or a little more."""
        taken = []
        while self.lines and size > 0:
            taken.append(self.lines.popleft())
            size -= _cost(taken[-1][2])
            self.size -= _cost(taken[-1][2])
        return taken


def _cost(line: bytes) -> int:
    return _OVERHEAD + min(len(line), _MAX_LINE)


class HostLog:
    """The log file of a host, and the stream of chosen ranks' lines to the controller.

    Args:
        welcome: says which file.
        link: to the controller.

    Raises OSError: the file cannot be opened.
    """

    def __init__(self, reactor: Reactor, welcome: HostWelcome, link: Link) -> None:
        self.file = LogFile(welcome.log, welcome.log_max_bytes, welcome.log_keep)
        self._reactor = reactor
        self._link = link
        self._streams: weakref.WeakSet[Stream] = weakref.WeakSet()
        self._levels: dict[tuple[int, int], int] = {}
        self._waiting: dict[tuple[int, int], _Waiting] = {}
        self._busy = False  # a frame is being gathered, or under way

    def stream(self, fd: int, prefix: str, mesh: int = 0, rank: int = 0) -> Stream:
        """A pipe for descriptor ``fd`` of a rank, or of what belongs to no mesh.

        Raises OSError: out of descriptors.
        """
        stream = Stream(self._reactor, RankLog(self, (mesh, rank), prefix, fd))
        self._streams.add(stream)
        return stream

    def order(self, order: StreamLogs) -> None:
        """Send from now on what the controller asks for."""
        for rank in order.ranks:
            if order.level is None:
                self._levels.pop((order.mesh, rank), None)
            else:
                self._levels[order.mesh, rank] = order.level

    def forget(self, mesh: int) -> None:
        """A mesh is over: nothing more is asked for of its ranks."""
        self._levels = {key: level for key, level in self._levels.items() if key[0] != mesh}

    def level_of(self, mesh: int, rank: int) -> int | None:
        """From which level on a rank's lines are sent; None if none are."""
        return self._levels.get((mesh, rank))

    def taken(self) -> None:
        """The controller is done with the last frame."""
        self._busy = False
        if self._waiting:
            self._gather()

    def flush(self) -> None:
        """Send all that waits: nothing comes after it."""
        while self._waiting:
            self._send_frame()

    def close(self) -> None:
        """Take what is left in the pipes, and close all."""
        for stream in list(self._streams):
            stream.finish()
        self.file.close()

    def wait(
        self, key: tuple[int, int], fd: int, lines: Sequence[bytes], levels: Levels, least: int
    ) -> None:
        """Keep lines from a level on for the next frame."""
        waiting = self._waiting.get(key) or _Waiting()
        now = time.time()
        for number, line in enumerate(lines):
            level = levels[number] if levels else None
            if (UNMARKED[fd] if level is None else level) >= least:
                waiting.add(fd, now, line)
        if waiting.lines or waiting.dropped:
            self._waiting[key] = waiting
            self._gather()

    def _gather(self) -> None:
        if not self._busy:
            self._busy = True
            self._reactor.call_later(_GATHER_S, self._send_frame)

    def _send_frame(self) -> None:
        """A frame of what waits, a share of each rank in turns."""
        found: dict[tuple[int, int], list[tuple[int, float, bytes]]] = {}
        dropped: dict[tuple[int, int], int] = {}
        size = 0
        while self._waiting and size < _FRAME_BYTES:
            key = next(iter(self._waiting))
            waiting = self._waiting.pop(key)
            before = waiting.size
            found.setdefault(key, []).extend(waiting.take(_SHARE_BYTES))
            size += before - waiting.size + _OVERHEAD
            if waiting.lines:
                self._waiting[key] = waiting  # behind the others
            elif waiting.dropped:
                dropped[key] = waiting.dropped
        if not found:
            self._busy = False
            return
        body, _ = dumps(
            [RankLines(*key, tuple(lines), dropped.get(key, 0)) for key, lines in found.items()]
        )
        with contextlib.suppress(LinkClosed):
            self._link.post(Frame(Kind.LOG, body))


@dataclass
class RankLog:
    """One descriptor of one rank."""

    log: HostLog
    key: tuple[int, int]
    prefix: str
    fd: int

    def write(self, lines: Sequence[bytes], levels: Levels) -> None:
        """See ``LineSink.write``. A host without a file leaves what is sent to the controller."""
        least = self.log.level_of(*self.key)
        if least is not None:
            self.log.wait(self.key, self.fd, lines, levels, least)
        if least is None or self.log.file.is_file:
            self.log.file.write(lines, self.prefix)

    def is_busy(self, now: float) -> bool:
        """See ``LineSink.is_busy``."""
        return self.log.file.is_busy(now)

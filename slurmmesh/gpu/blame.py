"""Who an operation is waiting for: what can be found out about ranks, and who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from slurmmesh.gpu import progress
from slurmmesh.gpu.peers import Peer

Dead = Callable[[], Iterable[int]]


@dataclass(frozen=True)
class Waiting:
    """An operation of this rank that does not end.

    Attributes:
        name: of the operation.
        sequence: how many collectives this rank has begun, with this one.
        ranks: the others that take part in it.
        paired: it is not one that all ranks call (send, recv), so that numbers say nothing.
    """

    name: str
    sequence: int
    ranks: tuple[int, ...]
    paired: bool = False


@dataclass(frozen=True)
class Verdict:
    """What was found out. The ranks of which nothing is known are in none of these.

    Attributes:
        dead: ranks that are dead.
        late: that live but have not arrived, or have called something else.
        left: that live but have finalized or aborted the communicator.
        words: a text for each of those; of the last only if there are no others.
    """

    dead: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    left: tuple[int, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def to_blame(self) -> tuple[int, ...]:
        """The dead if there are any, else the late, else those that left."""
        return self.dead or self.late or self.left


class Witnesses:
    """What this process can find out about the ranks of a communicator.

    Args:
        key: of the communicator.
        peers: by rank; perhaps not all.
        dead: tells ranks that are dead, of any host.
    """

    def __init__(self, key: bytes, peers: Mapping[int, Peer], dead: Dead | None) -> None:
        self.key = key
        self.peers = dict(peers)
        self.dead = dead

    def dead_ranks(self, ranks: Iterable[int]) -> dict[int, str]:
        """Those of ``ranks`` that are dead, with the words for it."""
        told, _ = self._told_dead()
        found = {}
        for rank in ranks:
            peer = self.peers.get(rank)
            name = str(peer) if peer else f"rank {rank}"
            if rank in told:
                found[rank] = f"{name} is dead: so the program's supervision says"
            elif peer and peer.here and peer.state == "dead":
                found[rank] = f"{name} is dead"
        return found

    def judge(self, waiting: Waiting) -> Verdict:
        """Who is to blame for an operation that does not end."""
        dead = self.dead_ranks(waiting.ranks)
        words = dict(dead)
        late, left = [], []
        for rank in waiting.ranks:
            peer = self.peers.get(rank)
            if rank in dead or peer is None or not peer.here:
                continue
            kind, text = self._standing(peer, waiting)
            if text:
                words[rank] = f"{peer} {text}"
            late += [rank] if kind == "late" else []
            left += [rank] if kind == "left" else []
        problem = self._told_dead()[1]
        told = (*dead, *late) or left  # whoever left had heard of the others before
        texts = [text for rank, text in words.items() if rank in told]
        return Verdict(
            tuple(dead), tuple(late), tuple(left), (*texts, *([problem] if problem else []))
        )

    def _told_dead(self) -> tuple[frozenset[int], str]:
        """What ``dead`` says, and what is wrong with it."""
        if self.dead is None:
            return frozenset(), ""
        try:
            return frozenset(self.dead()), ""
        except Exception as error:  # the program's own; the operation's failure comes first
            return frozenset(), f"dead() failed: {type(error).__name__}: {error}"

    def _standing(self, peer: Peer, waiting: Waiting) -> tuple[str, str]:
        """``late``, ``left`` or nothing, and what is to be told of a rank that is not dead."""
        stopped = " and stopped by a signal" if peer.state == "stopped" else ""
        there = progress.read(peer.pid, peer.board, self.key, peer.rank)
        if there is None:
            if waiting.name == "init":
                return "late", f"is alive{stopped}, but has not begun to join"
            return ("late", "is stopped by a signal") if stopped else ("", "")
        at = f"{there.operation} {there.sequence}" if there.sequence else there.operation
        if waiting.paired:
            where = f"is in {at}" if there.inside else f"is in no operation, after {at}"
            if there.left:
                return "left", f"is alive{stopped}, but has left the communicator"
            return "late", f"is alive{stopped}, and {where}"
        behind = there.sequence < waiting.sequence
        if there.left:
            after = f" after operation {there.sequence}, {there.operation}" if behind else ""
            return "left", f"is alive{stopped}, but has left the communicator{after}"
        if behind:
            which = "is at" if there.inside else "has come to"
            return "late", (
                f"is alive{stopped}, but has not arrived: it {which} operation {there.sequence}, "
                f"{there.operation}; this rank is at {waiting.sequence}, {waiting.name}"
            )
        if there.sequence == waiting.sequence and there.operation != waiting.name:
            if there.operation in ("send", "recv"):
                return "", ""
            return "late", (
                f"is alive{stopped}, but has called {there.operation} as operation "
                f"{there.sequence}, where this rank has called {waiting.name}"
            )
        return ("late", "has arrived, but is stopped by a signal") if stopped else ("", "")

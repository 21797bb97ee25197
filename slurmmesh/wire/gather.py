"""Answers on their way up: merged, each rank once. Pure: frames in, frames out.

A relay keeps a :class:`Gather` for each request it has passed on. Small results wait in it for
each other and leave as one MERGED frame; large ones, errors and those of a stream leave at once.
Nothing is decoded.

A MERGED frame's body is a table (for each rank the length of its body, 8 bytes, then for each
the number of its buffers, 2 bytes) followed by the bodies; its buffers are those of all ranks.
"""

from __future__ import annotations

from array import array
from collections.abc import Collection, Hashable, Iterable, Iterator, Sequence

from slurmmesh.errors import FrameError
from slurmmesh.wire.frames import MAX_BUFFERS, STREAM, Buffer, Frame, Kind

SMALL = 1 << 16
"""Results of up to so many bytes are merged: waiting for others costs less than a frame each."""

_ENTRY = 10  # bytes in the table for each rank


def unmerge(frame: Frame) -> Iterator[tuple[int, memoryview, Sequence[Buffer]]]:
    """Rank, body and buffers of each result in a MERGED frame.

    Raises:
        FrameError: the table does not fit the frame.
    """
    lengths, counts = _table(frame)
    body = memoryview(frame.body)
    at, first = _ENTRY * len(lengths), 0
    for rank, length, count in zip(frame.ranks, lengths, counts, strict=True):
        yield rank, body[at : at + length], frame.buffers[first : first + count]
        at += length
        first += count


def _table(frame: Frame) -> tuple[array[int], array[int]]:
    lengths, counts = array("Q"), array("H")
    number = len(frame.ranks)
    head = memoryview(frame.body)[: _ENTRY * number]
    if len(head) == _ENTRY * number:
        lengths.frombytes(head[: 8 * number])
        counts.frombytes(head[8 * number :])
        whole = len(head) + sum(lengths) == len(frame.body)
        if whole and sum(counts) == len(frame.buffers):
            return lengths, counts
    raise FrameError(f"a merged frame of {number} ranks whose table does not fit it")


class _Merger:
    """Results that leave together."""

    def __init__(self) -> None:
        self.ranks: list[int] = []
        self._lengths, self._counts = array("Q"), array("H")
        self._bodies: list[Buffer] = []
        self._buffers: list[Buffer] = []

    def has_room(self, buffers: int) -> bool:
        return len(self._buffers) + buffers <= MAX_BUFFERS

    def add(self, rank: int, body: Buffer, buffers: Sequence[Buffer]) -> None:
        self.ranks.append(rank)
        self._lengths.append(len(body))
        self._counts.append(len(buffers))
        self._bodies.append(body)
        self._buffers.extend(buffers)

    def add_all(self, frame: Frame) -> None:
        """Everything of a MERGED frame."""
        lengths, counts = _table(frame)
        self.ranks.extend(frame.ranks)
        self._lengths.extend(lengths)
        self._counts.extend(counts)
        self._bodies.append(memoryview(frame.body)[_ENTRY * len(lengths) :])
        self._buffers.extend(frame.buffers)

    def frame(self, call: int, mesh: int, actor: int) -> Frame:
        table = (self._lengths.tobytes(), self._counts.tobytes())
        body = b"".join([*table, *self._bodies])
        return Frame(Kind.MERGED, body, self._buffers, call, mesh, actor, tuple(self.ranks))


class Gather:
    """One request at a relay: who owes what, and what has to go up.

    A *way* is that by which a rank is reached: the link to a host below, or the rank's own proc.
    What :meth:`take`, :meth:`lost`, :meth:`flush` and :meth:`again` return goes up, in order.

    Args:
        request: the frame as it came; its kind and flags say what is owed for each rank: an
            answer, unless it is a CAST; and before it, if ``acked``, that it was delivered.
        keep: keep what went up, in case the way up breaks before it has arrived.
    """

    def __init__(self, request: Frame, acked: bool, keep: bool = False) -> None:
        self._id = (request.call, request.mesh, request.actor)
        self._answered = request.kind is not Kind.CAST
        self._acked = acked
        self._merge = len(request.ranks) > 1 and not request.flags & STREAM
        self._known: set[int] = set()
        # By way: the ranks that owe an answer, and those of whom nobody knows that they got it.
        self._owed: dict[Hashable, set[int]] = {}
        self._on_the_way: dict[Hashable, set[int]] = {}
        self._delivered: list[int] = []
        self._merger = _Merger()
        self._kept: list[Frame] | None = [] if keep else None

    @property
    def done(self) -> bool:
        """Nothing is owed any more."""
        return not (self._owed or self._on_the_way)

    @property
    def under_way(self) -> bool:
        """Not everyone is known to have got it."""
        return bool(self._on_the_way)

    @property
    def holds(self) -> bool:
        """Answers wait for others."""
        return bool(self._merger.ranks or self._delivered)

    @property
    def keeps(self) -> bool:
        """It keeps what went up."""
        return self._kept is not None

    def add(self, ranks: Collection[int], way: Hashable) -> None:
        """The request was passed on to these ranks, this way."""
        self._known.update(ranks)
        if self._answered and ranks:
            self._owed.setdefault(way, set()).update(ranks)
        if self._acked and ranks:
            self._on_the_way.setdefault(way, set()).update(ranks)

    def unknown(self, ranks: Iterable[int]) -> list[int]:
        """Those of these ranks that it has not been passed on to."""
        return [rank for rank in ranks if rank not in self._known]

    def owes(self, rank: int, way: Hashable) -> bool:
        """Whether a rank still owes something this way."""
        return any(rank in waiting.get(way, ()) for waiting in (self._owed, self._on_the_way))

    def ranks_by(self, way: Hashable) -> list[int]:
        """The ranks that still owe something this way."""
        return sorted({*self._owed.get(way, ()), *self._on_the_way.get(way, ())})

    def take(self, frame: Frame, way: Hashable) -> list[Frame]:
        """Take what came up from below this way. What came before, by whatever way, is dropped.

        Only by the way it is expected can a rank come back as not reached.

        Raises:
            FrameError: a MERGED frame that is none.
        """
        if frame.kind is Kind.DELIVERED:
            self._delivered += _cross_off(self._on_the_way, frame.ranks, way)
            return self._up([])
        if frame.kind is Kind.RETURNED:
            owing = set(self.ranks_by(way))
            return self.give_back([rank for rank in frame.ranks if rank in owing])
        fresh = _cross_off(self._owed, frame.ranks, way)
        # Who has answered has got it, whatever way the news took.
        self._delivered += _cross_off(self._on_the_way, fresh, way)
        if not fresh:
            return self._up([])
        if len(fresh) < len(frame.ranks):
            return self._up([up for one in _apart(frame, set(fresh)) for up in self._pass(one)])
        return self._up(self._pass(frame))

    def lost(self, way: Hashable) -> list[Frame]:
        """The way is gone, and with it what was owed by it: who sent the request takes it back."""
        return self.give_back(self.ranks_by(way))

    def flush(self) -> list[Frame]:
        """What waits for others waits no more."""
        return self._up([], at_once=True)

    def give_back(self, ranks: Collection[int]) -> list[Frame]:
        """Nothing more is expected of these ranks, which are among those that owe something."""
        self._known.difference_update(ranks)
        _cross_off(self._owed, ranks, None)
        _cross_off(self._on_the_way, ranks, None)
        return self._up([self._frame(Kind.RETURNED, ranks)] if ranks else [])

    def again(self, ranks: Iterable[int]) -> list[Frame]:
        """Of ranks that are asked for anew, after the way up broke: what went up already.

        All others are asked for by other ways: nothing waits for them here any more.
        """
        asked = set(ranks)
        for waiting in (self._owed, self._on_the_way):
            others = {rank for ranks in waiting.values() for rank in ranks} - asked
            _cross_off(waiting, others, None)
        ups = [frame for frame in self._kept or () if not asked.isdisjoint(frame.ranks)]
        missing = {rank for ranks in self._on_the_way.values() for rank in ranks}
        if self._acked and (got := (asked & self._known) - missing):
            ups.insert(0, self._frame(Kind.DELIVERED, got))
        return [*ups, *self._up([])]

    def _frame(self, kind: Kind, ranks: Iterable[int]) -> Frame:
        call, mesh, actor = self._id
        return Frame(kind, b"", (), call, mesh, actor, tuple(ranks))

    def _pass(self, frame: Frame) -> list[Frame]:
        """An answer of which no rank was known: it goes up now, or with others."""
        buffers = frame.buffers
        size = len(frame.body)
        if buffers:
            size += sum(memoryview(buffer).nbytes for buffer in buffers)
        if frame.kind is Kind.ERROR or not self._merge or size > SMALL * len(frame.ranks):
            return [frame]
        full = [] if self._merger.has_room(len(buffers)) else [self._merged()]
        if frame.kind is Kind.MERGED:
            self._merger.add_all(frame)
        else:
            for rank in frame.ranks:
                self._merger.add(rank, frame.body, buffers)
        return full

    def _merged(self) -> Frame:
        merger, self._merger = self._merger, _Merger()
        return merger.frame(*self._id)

    def _up(self, ups: list[Frame], at_once: bool = False) -> list[Frame]:
        if self._delivered and (at_once or not (self._merge and self._on_the_way)):
            ups.insert(0, self._frame(Kind.DELIVERED, self._delivered))
            self._delivered = []
        if self._merger.ranks and (at_once or not self._owed):
            ups.append(self._merged())
        if self._kept is not None:
            self._kept += [up for up in ups if up.kind not in (Kind.DELIVERED, Kind.RETURNED)]
        return ups


def _cross_off(
    waiting: dict[Hashable, set[int]], ranks: Collection[int], way: Hashable
) -> Collection[int]:
    """Cross ranks off that are likely to be waited for this way; those that were, by any."""
    likely = waiting.get(way)
    if likely is not None and likely.issuperset(ranks):
        likely.difference_update(ranks)
        if not likely:
            del waiting[way]
        return ranks
    found: list[int] = []
    for each, there in list(waiting.items()):
        hit = there.intersection(ranks)
        if hit:
            found += hit
            there -= hit
            if not there:
                del waiting[each]
    return found


def _apart(frame: Frame, ranks: set[int]) -> Iterator[Frame]:
    """An answer of several ranks as one frame for each of these."""
    if frame.kind is not Kind.MERGED:
        wanted = tuple(rank for rank in frame.ranks if rank in ranks)
        yield Frame(
            frame.kind, frame.body, frame.buffers, frame.call, frame.mesh, frame.actor, wanted
        )
        return
    for rank, body, buffers in unmerge(frame):
        if rank in ranks:
            yield Frame(Kind.RESULT, body, buffers, frame.call, frame.mesh, frame.actor, (rank,))

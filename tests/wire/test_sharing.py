"""Payloads in shared memory between links: in place, once, and given back."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
from array import array
from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from slurmmesh.errors import FrameError
from slurmmesh.wire import Frame, Kind, Reactor, shm
from slurmmesh.wire.frames import SHARED
from slurmmesh.wire.sharing import THRESHOLD, Sharing
from slurmmesh.wire.shm import Pool

MIB = 1 << 20


def open_segments() -> int:
    """Descriptors of segments in this process."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += "memfd:slurmmesh" in os.readlink(f"/proc/self/fd/{fd}")
    return count


class Ends:
    """Both ends of a link without the link: what is sent waits until it is carried over."""

    def __init__(self, reactor: Reactor, pool: Pool) -> None:
        self.releases: list[Frame] = []
        self.sender = Sharing(reactor, lambda frame: None, pool)
        self.receiver = Sharing(reactor, self.releases.append, Pool())

    def carry(self, frame: Frame) -> Frame | None:
        """Send a frame; what arrives, or None if it would go through the socket."""
        placed = self.sender.place(frame)
        if placed is None:
            return None
        placed.sent()
        sent = placed.frame
        arrived = Frame(
            sent.kind, sent.body, [bytearray(sent.buffers[0])], flags=sent.flags, fds=placed.fds
        )
        handled: list[Frame] = []
        self.receiver.receive(arrived, lambda: handled.append(arrived))
        for fd in placed.fds:  # the decoder's
            os.close(fd)
        assert handled
        assert arrived.flags & SHARED == 0
        assert not arrived.fds
        return arrived

    def give_back(self) -> None:
        """What the receiver has to say arrives."""
        self.receiver._release()
        while self.releases:
            self.sender.receive(self.releases.pop(0), lambda: None)

    def close(self) -> None:
        self.sender.close()
        self.receiver.close()


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    loop = Reactor()
    yield loop
    loop.close()


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.empty()
    gc.collect()
    assert open_segments() == 0


@pytest.fixture
def ends(reactor: Reactor, pool: Pool) -> Iterator[Ends]:
    made = Ends(reactor, pool)
    yield made
    made.close()


def one(size: int, byte: int = 1) -> Frame:
    return Frame(Kind.CALL, b"body", [bytes([byte]) * size])


# ------------------------------------------------------------------ the promise


class SharingMachine(RuleBasedStateMachine):
    """A sender, a relay and two receivers; arrays are kept and dropped in any order.

    Whoever holds an array finds in it what was sent, whatever was sent since then.
    """

    arrived = Bundle("arrived")
    LIMIT = 24 * MIB

    def __init__(self) -> None:
        super().__init__()
        self.reactor = Reactor()
        self.now = 0.0
        self.pool = Pool(limit=self.LIMIT, clock=lambda: self.now)
        self.count = 0
        self.open()
        self.held: dict[int, tuple[list[np.ndarray], list[int], Frame | None]] = {}

    def open(self) -> None:
        self.up = Ends(self.reactor, self.pool)
        self.downs = [Ends(self.reactor, Pool(limit=0)) for _ in range(2)]

    def keep(self, frame: Frame, bytes_in: list[int], whole: bool) -> int:
        self.count += 1
        arrays = [np.frombuffer(buffer, np.uint8) for buffer in frame.buffers]
        self.held[self.count] = (arrays, bytes_in, frame if whole else None)
        return self.count

    @rule(
        target=arrived,
        sizes=st.lists(st.sampled_from([0, 1, 100, 4096, MIB // 2, MIB, 3 * MIB]), max_size=4),
        whole=st.booleans(),
    )
    def send(self, sizes: list[int], whole: bool) -> int:
        marks = [(self.count + k) % 251 for k in range(len(sizes))]
        buffers = [memoryview(bytes([m]) * n) for m, n in zip(marks, sizes, strict=True)]
        frame = self.up.carry(Frame(Kind.CALL, b"", buffers))
        if frame is None:
            in_use = sum(s.written for s in self.pool._used)
            assert sum(sizes) < THRESHOLD or in_use + sum(sizes) + 4096 > self.LIMIT
            return 0
        assert [len(buffer) for buffer in frame.buffers] == sizes
        return self.keep(frame, marks, whole)

    @rule(target=arrived, number=arrived, way=st.integers(0, 1))
    def relay(self, number: int, way: int) -> int:
        _, marks, frame = self.held.get(number, ([], [], None))
        if frame is None:
            return 0
        passed = self.downs[way].carry(Frame(Kind.CALL, b"", list(frame.buffers)))
        assert passed is not None, "nothing is copied: the relay's own pool gives nothing"
        return self.keep(passed, marks, False)

    @rule(number=consumes(arrived))
    def drop(self, number: int) -> None:
        self.held.pop(number, None)

    @rule()
    def drop_all(self) -> None:
        self.held.clear()
        self.give_back()
        assert self.pool.used_bytes == 0

    @rule()
    def give_back(self) -> None:
        for ends in (*self.downs, self.up):
            ends.give_back()
        self.pool.settle()

    @rule()
    def close_the_links(self) -> None:
        for ends in (*self.downs, self.up):
            ends.close()
        self.pool.settle()
        self.open()
        assert self.pool.idle_bytes == 0
        for number, (arrays, marks, _) in list(self.held.items()):
            self.held[number] = (arrays, marks, None)

    @rule()
    def time_passes(self) -> None:
        self.pool.settle()
        self.now += 60
        self.pool.settle()
        assert self.pool.idle_bytes == 0

    @invariant()
    def everybody_finds_what_was_sent(self) -> None:
        for arrays, marks, _ in self.held.values():
            for each, mark in zip(arrays, marks, strict=True):
                assert (each[:1] == mark).all()
                assert (each[-1:] == mark).all()

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.pool.used_bytes <= self.LIMIT + 4096

    def teardown(self) -> None:
        self.held.clear()
        for ends in (*self.downs, self.up):
            ends.close()
        self.pool.empty()
        self.reactor.close()
        if open_segments():
            gc.collect()  # which takes its time where much is imported
        assert open_segments() == 0


TestSharing = pytest.mark.slow(SharingMachine.TestCase)
TestSharing.settings = settings(max_examples=20, stateful_step_count=25)


# ------------------------------------------------------------------ one step at a time


def test_small_payloads_go_through_the_socket(ends):
    assert ends.carry(one(THRESHOLD - 1)) is None
    assert ends.carry(one(THRESHOLD)) is not None


def test_a_segment_serves_again_once_the_last_array_of_it_is_gone(ends, pool):
    first = ends.carry(one(MIB, 1))
    kept = np.frombuffer(first.buffers[0], np.uint8)[5:10]
    del first
    ends.give_back()
    second = ends.carry(one(MIB, 2))
    assert pool.used_bytes == 2 * MIB
    assert kept.tolist() == [1] * 5
    kept[0] = 9
    assert second.buffers[0][5] == 2
    del kept
    ends.give_back()
    assert (pool.used_bytes, pool.idle_bytes) == (MIB, MIB)
    third = ends.carry(one(MIB, 3))
    assert (pool.used_bytes, third.buffers[0][5]) == (2 * MIB, 3)


def test_descriptors_go_once(ends):
    assert ends.carry(one(MIB))
    ends.give_back()
    placed = ends.sender.place(one(MIB))
    assert (placed.fds, len(placed.frame.buffers)) == ((), 1)


def test_a_large_buffer_is_free_when_it_is_unused_though_others_of_its_message_are_not(ends, pool):
    frame = ends.carry(Frame(Kind.CALL, b"", [bytes(4 * MIB), bytes(2 * MIB), bytes(100)]))
    kept = frame.buffers[2]
    del frame
    ends.give_back()
    assert (pool.used_bytes, pool.idle_bytes) == (100, 6 * MIB)
    assert bytes(kept) == bytes(100)


def test_many_buffers_need_few_descriptors(ends):
    placed = ends.sender.place(Frame(Kind.CALL, b"", [bytes(MIB)] * 40))
    assert len(placed.fds) <= 17
    for fd in placed.fds:
        os.close(fd)


def test_what_one_link_has_in_shared_memory_others_pass_on(ends, reactor, pool):
    frame = one(MIB)
    assert ends.carry(frame)
    used = pool.used_bytes
    other = Ends(reactor, pool)
    assert other.carry(frame).buffers[0][0] == 1
    assert pool.used_bytes == used
    other.close()


def test_a_segment_that_is_gone_is_unmapped_by_the_peer_with_the_next_payload(ends, pool):
    assert ends.carry(one(MIB))
    ends.give_back()
    pool.empty()
    assert len(ends.receiver._mapped) == 1
    assert ends.carry(one(2 * MIB))
    assert [segment.size for segment in ends.receiver._mapped.values()] == [2 * MIB]


def test_what_a_closed_link_may_still_use_is_not_used_again(ends, pool):
    arrived = ends.carry(one(MIB, 1))
    ends.close()
    pool.settle()
    assert (pool.used_bytes, pool.idle_bytes) == (0, 0)
    assert bytes(arrived.buffers[0]) == bytes([1]) * MIB
    assert ends.sender.place(one(MIB)) is None


def test_without_memory_payloads_go_through_the_socket(reactor, monkeypatch):
    ends = Ends(reactor, Pool(limit=MIB))
    assert ends.carry(one(2 * MIB)) is None

    def no_memory(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(shm.os, "pwrite", no_memory)  # no way to fill this machine's memory
    assert ends.carry(one(MIB)) is None
    monkeypatch.undo()
    assert ends.carry(one(MIB))
    ends.close()


def test_without_descriptors_payloads_go_through_the_socket(ends, pool):
    lease = pool.lease(MIB)
    frame = Frame(Kind.CALL, b"", [lease.segment.view(lease)])
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        assert ends.sender.place(frame) is None
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert not ends.sender._lent
    assert ends.carry(frame)


def test_a_frame_that_is_handed_over_again_has_its_buffers_again(ends, pool):
    placed = ends.sender.place(one(MIB, 7))
    table, fds = placed.frame.buffers[0], placed.fds
    del placed

    def arrived() -> Frame:
        return Frame(Kind.CALL, b"", [bytearray(table)], flags=SHARED, fds=fds)

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ends.receiver.receive(arrived(), interrupted)
    ends.give_back()
    again, handled = arrived(), []
    ends.receiver.receive(again, lambda: handled.append(again.buffers[0][0]))
    assert handled == [7]
    again.buffers = ()
    ends.give_back()
    assert pool.used_bytes == 0
    ends.receiver.receive(arrived(), lambda: handled.append(0))
    assert handled == [7]
    ends.give_back()
    for fd in fds:  # the decoder's
        os.close(fd)


@pytest.mark.parametrize("was_sent", [True, False])
def test_what_is_free_is_told_though_a_signal_handler_raises_and_told_twice_frees_once(
    ends, pool, was_sent
):
    post = ends.receiver._post

    def interrupted(frame: Frame) -> None:
        ends.receiver._post = post
        if was_sent:
            post(frame)
        raise KeyboardInterrupt

    kept = ends.carry(one(MIB, 1))
    first = ends.carry(one(MIB, 2))
    ends.receiver._post = interrupted
    del first
    with pytest.raises(KeyboardInterrupt):
        ends.receiver._release()
    told = list(ends.releases)
    del kept
    ends.give_back()
    assert not ends.sender._lent
    held = [ends.carry(one(MIB, byte)) for byte in (3, 4)]
    for release in told:
        ends.sender.receive(release, lambda: None)
    ends.give_back()
    assert len(ends.sender._lent) == 2
    assert [ends.carry(one(MIB, 5)).buffers[0][0], *(each.buffers[0][0] for each in held)] == [
        5,
        3,
        4,
    ]


@given(
    numbers=st.lists(st.integers(0, 6) | st.integers(0, (1 << 64) - 1), max_size=24),
    junk=st.binary(max_size=9),
    fds=st.integers(0, 2),
)
def test_no_table_reaches_beyond_what_was_passed(numbers, junk, fds):
    reactor = Reactor()
    ends = Ends(reactor, Pool())
    held = ends.carry(one(MIB))
    known = next(iter(ends.receiver._mapped))
    table = array("Q", [known if number == 6 else number for number in numbers]).tobytes()
    opened = [os.open(os.devnull, os.O_RDONLY) for _ in range(fds)]
    frame = Frame(Kind.CALL, b"", [bytearray(table + junk)], flags=SHARED, fds=tuple(opened))
    with contextlib.suppress(FrameError):
        ends.receiver.receive(frame, lambda: [bytes(buffer[-1:]) for buffer in frame.buffers])
    for fd in opened:  # still the decoder's, and not used for anything else
        assert os.readlink(f"/proc/self/fd/{fd}") == os.devnull
        os.close(fd)
    with contextlib.suppress(FrameError):
        ends.sender.receive(Frame(Kind.RELEASE, table + junk, flags=SHARED), lambda: None)
    assert held.buffers[0][0] == 1
    ends.close()
    reactor.close()

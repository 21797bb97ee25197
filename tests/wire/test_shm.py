"""The pool of segments: nothing is used twice at a time, nothing is kept for ever."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import resource
import threading
from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from slurmmesh.errors import FrameError
from slurmmesh.wire import shm
from slurmmesh.wire.shm import IDLE_S, MAX_SEGMENTS, SMALLEST, Lease, Pool, Segment

MIB = 1 << 20


def open_segments() -> int:
    """Descriptors of segments in this process."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += "memfd:slurmmesh" in os.readlink(f"/proc/self/fd/{fd}")
    return count


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    yield made
    made.empty()
    gc.collect()
    assert open_segments() == 0


def filled(pool: Pool, size: int, byte: int = 1) -> Lease:
    """A lease whose segment has been written."""
    lease = pool.lease(size)
    assert lease is not None
    lease.segment.write(0, memoryview(bytes([byte]) * size))
    return lease


class PoolMachine(RuleBasedStateMachine):
    """What a pool promises, whatever is leased, ended, lost or forgotten in whatever order."""

    leases = Bundle("leases")
    LIMIT = 12 * MIB

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.pool = Pool(limit=self.LIMIT, clock=lambda: self.now)
        self.live: dict[int, tuple[Lease, bytes]] = {}
        self.lost: set[int] = set()
        self.count = 0

    @rule(target=leases, size=st.integers(1, 3 * MIB))
    def take(self, size: int) -> int:
        self.count += 1
        in_use = sum(lease.segment.written for lease, _ in self.live.values())
        lease = self.pool.lease(size)
        if lease is None:
            assert in_use + size > self.LIMIT
            return self.count
        assert lease.segment.id not in self.lost
        assert lease.segment.size >= size
        data = bytes([self.count % 256]) * min(size, 4096)
        lease.segment.write(size - len(data), memoryview(data))
        lease.segment.write(0, memoryview(data))
        self.live[self.count] = (lease, data)
        return self.count

    @rule(number=consumes(leases))
    def end(self, number: int) -> None:
        self.live.pop(number, None)

    @rule(number=consumes(leases))
    def lose(self, number: int) -> None:
        lease, _ = self.live.pop(number, (None, None))
        if lease is not None:
            lease.lost = True
            self.lost.add(lease.segment.id)

    @rule(seconds=st.sampled_from([1.0, IDLE_S + 1]))
    def wait(self, seconds: float) -> None:
        self.pool.settle()
        self.now += seconds
        self.pool.settle()
        assert seconds < IDLE_S or self.pool.idle_bytes == 0
        assert self.live or self.pool.used_bytes == 0

    @invariant()
    def every_segment_has_one_user_and_what_it_wrote(self) -> None:
        ids = [lease.segment.id for lease, _ in self.live.values()]
        assert len(ids) == len(set(ids))
        for lease, data in self.live.values():
            assert bytes(lease.segment.view(lease)[: len(data)]) == data

    def teardown(self) -> None:
        self.live.clear()
        self.pool.empty()
        if open_segments():
            gc.collect()  # which takes its time where much is imported
        assert open_segments() == 0


TestPool = pytest.mark.slow(PoolMachine.TestCase)
TestPool.settings = settings(max_examples=25, stateful_step_count=25)


def test_a_warm_segment_is_used_again_the_last_one_first(pool):
    first, second = filled(pool, MIB), filled(pool, MIB)
    last = second.segment.id
    del first, second
    assert filled(pool, MIB).segment.id == last
    assert filled(pool, 2 * MIB).segment.size == 2 * MIB


def test_memory_that_is_idle_is_given_back_though_a_peer_has_it_mapped():
    now = 0.0
    pool = Pool(clock=lambda: now)
    lease = filled(pool, 8 * MIB)
    peers = Segment.of_peer(lease.segment.fd, lease.segment.size)

    def taken() -> int:
        return os.fstat(peers.fd).st_blocks * 512

    assert taken() == 8 * MIB
    del lease
    assert pool.look()
    assert not pool.look(), "one timer is enough"
    assert pool.idle_bytes == 8 * MIB
    now += IDLE_S
    assert not pool.look()
    assert (pool.idle_bytes, taken()) == (0, 0)


def test_idle_memory_has_a_bound_of_which_what_was_used_last_is_kept(pool, monkeypatch):
    monkeypatch.setattr(shm, "MAX_IDLE", 3 * MIB)
    leases = [filled(pool, MIB) for _ in range(5)]
    kept = [lease.segment.id for lease in leases[2:]]
    while leases:
        del leases[0]
    pool.settle()
    assert pool.idle_bytes == 3 * MIB
    assert [segment.id for segment in pool._idle] == kept


def test_there_are_no_more_segments_than_descriptors_for_them(pool):
    leases = [pool.lease(1) for _ in range(MAX_SEGMENTS)]
    assert pool.lease(1) is None
    leases.pop()
    assert pool.lease(SMALLEST + 1) is not None  # an idle one of another size makes room


def test_when_the_last_user_leaves_nothing_stays_idle(pool):
    users = [threading.Event(), threading.Event()]
    for user in users:
        pool.enter(user)
    filled(pool, MIB)
    pool.leave(users[0])
    pool.settle()
    assert pool.idle_bytes == MIB
    pool.leave(users[1])
    assert (pool.idle_bytes, open_segments()) == (0, 0)


def test_what_a_copy_replaces_is_replaced_whole_and_nothing_beside_it(pool):
    lease = filled(pool, 3 * MIB, 1)
    for data in (b"", b"ab", bytearray(b"cd"), memoryview(b"xefx")[1:3]):
        lease.segment.write(100, memoryview(data))
    view = lease.segment.view(lease)
    assert bytes(view[98:104]) == b"\1\1ef\1\1"
    lease.segment.write(4 * MIB - 2, memoryview(b"yz"))
    assert bytes(view[-3:]) == b"\0yz"


def test_a_segment_that_could_be_taken_away_or_is_not_as_large_is_refused(pool):
    lease = filled(pool, MIB)
    fd = lease.segment.fd
    with pytest.raises(OSError, match="not permitted"):
        os.ftruncate(fd, 0)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    with pytest.raises(FrameError, match="instead of"):
        Segment.of_peer(fd, 2 * MIB)
    loose = os.memfd_create("loose", os.MFD_ALLOW_SEALING)
    read, write = os.pipe()
    os.ftruncate(loose, MIB)
    for bad in (loose, read):
        with pytest.raises(FrameError):
            Segment.of_peer(bad, MIB)
    for each in (loose, read, write):
        os.close(each)


def in_child(check) -> None:
    """Run it in a forked child, which must end well."""
    pid = os.fork()
    if pid == 0:
        try:
            check()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_without_memory_or_descriptors_there_is_none():
    def no_descriptors() -> None:
        pool = Pool()
        resource.setrlimit(
            resource.RLIMIT_NOFILE, (4, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        )
        assert pool.lease(MIB) is None

    def no_descriptor_for_one_of_a_peer() -> None:
        lease = Pool().lease(MIB)
        fd = lease.segment.fd
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (4, limits[1]))
        with pytest.raises(MemoryError, match="descriptor"):
            Segment.of_peer(fd, MIB)

    def no_files_of_that_size() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        pool = Pool()
        assert pool.lease(2 * MIB) is None
        assert pool.lease(MIB) is not None

    def no_addresses() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (1 << 36, 1 << 36))
        pool = Pool(limit=1 << 40)
        assert pool.lease(1 << 37) is None
        assert open_segments() == 0

    for check in (
        no_descriptors,
        no_descriptor_for_one_of_a_peer,
        no_files_of_that_size,
        no_addresses,
    ):
        in_child(check)


def test_a_forked_child_has_nothing_of_its_parents_pool(pool, monkeypatch):
    monkeypatch.setattr(shm, "pool", pool)
    used, idle = filled(pool, MIB, 1), filled(pool, MIB, 2)
    before = idle.segment.id
    del idle
    pool.settle()

    def child() -> None:
        assert (pool.used_bytes, pool.idle_bytes) == (0, 0)
        mine = filled(pool, MIB, 3)
        assert mine.segment.id != before
        del mine
        pool.empty()

    in_child(child)
    assert bytes(used.segment.view(used)[:2]) == b"\1\1"
    assert pool.idle_bytes == MIB


def test_what_was_leased_when_a_child_was_forked_is_not_used_again(pool):
    lease = filled(pool, MIB)
    segment = lease.segment.id
    in_child(lambda: None)
    del lease
    pool.settle()
    assert pool.idle_bytes == 0
    assert filled(pool, MIB).segment.id != segment


def test_leases_that_threads_take_at_once_are_different(pool):
    taken: list[Lease] = []
    start = threading.Barrier(4)

    def take() -> None:
        start.wait()
        for _ in range(10):
            for _ in range(3):
                filled(pool, MIB)
            lease = pool.lease(MIB)
            assert lease is not None
            taken.append(lease)

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({lease.segment.id for lease in taken}) == 40

"""Shared memory for payloads between processes of one machine: segments, and a pool of warm ones.

A segment is a memfd: it has no name, and is gone when the last process that has it is. The
sender of a payload takes one from its pool and copies the payload in, once; the receiver maps it
and uses the bytes in place (``wire/sharing.py``). Who uses a segment holds a lease of it. When
the last one has ended the segment goes back to the pool: memory that is there already takes a
copy many times faster than memory that the kernel has yet to find.
"""

from __future__ import annotations

import ctypes
import fcntl
import itertools
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any

from slurmmesh.errors import FrameError

SMALLEST = 1 << 20
"""Bytes of the smallest segment. Sizes are powers of two; what is never written takes no memory."""
MAX_SEGMENTS = 64
"""A pool has no more: each is a descriptor."""
MAX_IDLE = 1 << 30
"""Bytes that wait in a pool for their next use, at most."""
IDLE_S = 10.0
"""So long they wait."""

_KEPT_FDS = 64
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_READ_WRITE, _SHARED = 3, 1
_MADV_REMOVE, _MADV_POPULATE_WRITE = 9, 23
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int),
    ctypes.c_ssize_t,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)

_ids = itertools.count(1)


class Segment:
    """A piece of memory that processes share, mapped in this one.

    Attributes:
        id: no other segment of this process ever has it.
        fd: its descriptor; -1 if only the mapping was kept.
        size: in bytes.
        written: so many bytes from its beginning have been written here, so they take memory.
        idle_since: when its last lease ended, by the monotonic clock.
    """

    __slots__ = (
        "__weakref__",
        "_populated",
        "address",
        "fd",
        "id",
        "idle_since",
        "size",
        "written",
    )

    def __init__(self, fd: int, size: int, keep_fd: bool = True) -> None:
        self.fd = -1
        self.address: Any = None
        self.id = next(_ids)
        self.size = size
        self.written = self._populated = 0
        self.idle_since = 0.0
        self.address = _libc.mmap(None, size, _READ_WRITE, _SHARED, fd, 0)
        if self.address == _FAILED:
            self.address = None
            raise MemoryError(f"cannot map {size} bytes: {os.strerror(ctypes.get_errno())}")
        if keep_fd:
            try:
                # In one step of the interpreter: a signal handler may raise.
                duplicate = map(fcntl.fcntl, (fd,), (fcntl.F_DUPFD_CLOEXEC,), (0,))
                deque(map(setattr, (self,), ("fd",), duplicate), 0)
            except OSError as error:
                raise MemoryError(f"no descriptor for {size} bytes: {error}") from None

    @classmethod
    def create(cls, size: int) -> Segment:
        """A new one. OSError or MemoryError if the machine has none to give."""
        fd = os.memfd_create("slurmmesh", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size)
            # Nobody can take away memory that somebody else reads.
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            return cls(fd, size)
        finally:
            os.close(fd)

    @classmethod
    def of_peer(cls, fd: int, size: int) -> Segment:
        """One that a peer made; ``fd`` stays the caller's.

        Raises:
            FrameError: it is not as large as it is said to be, or could be made smaller.
            MemoryError: it cannot be mapped.
        """
        try:
            seals, real = fcntl.fcntl(fd, fcntl.F_GET_SEALS), os.fstat(fd).st_size
        except OSError as error:
            raise FrameError(f"a segment that is no shared memory: {error}") from None
        if not seals & fcntl.F_SEAL_SHRINK or real != size:
            raise FrameError(f"a segment of {real} bytes instead of {size}, with seals {seals}")
        # Only what relays pass on needs a descriptor, and there must be some left for all else.
        segment = cls(fd, size, keep_fd=len(_kept) < _KEPT_FDS)
        if segment.fd >= 0:
            _kept.add(segment)
        return segment

    def view(self, lease: Lease) -> memoryview:
        """All of it, writable. What is made of the view keeps the lease."""
        array: Any = (ctypes.c_ubyte * self.size).from_address(self.address)
        array.lease = lease
        return memoryview(array).cast("B")

    def write(self, offset: int, data: memoryview) -> None:
        """Copy bytes in. OSError if there is no memory for them."""
        end = offset + len(data)
        source = _source(data) if end <= self.written else None
        if source is not None:
            if self._populated < self.written:
                _libc.madvise(self.address, self.written, _MADV_POPULATE_WRITE)
                self._populated = self.written
            ctypes.memmove(self.address + offset, source, len(data))
            return
        # Where no memory is yet the kernel writes faster than page faults do, and tells if there
        # is none to be had, where a page fault would kill.
        while offset < end:
            offset += os.pwrite(self.fd, data[len(data) - (end - offset) :], offset)
        self.written = max(self.written, end)

    def free(self) -> None:
        """Give its memory back to the machine, whoever has it mapped; when nobody uses it."""
        _libc.madvise(self.address, self.size, _MADV_REMOVE)

    def __del__(self, munmap: Callable[..., Any] = _libc.munmap, close: Any = os.close) -> None:
        if getattr(self, "fd", -1) >= 0:  # not set, if a signal handler raised in the beginning
            close(self.fd)
        if getattr(self, "address", None) is not None:
            munmap(self.address, self.size)


_kept: weakref.WeakSet[Segment] = weakref.WeakSet()
"""Segments of peers whose descriptors are open here."""


def _source(data: memoryview) -> int | bytes | None:
    """What to give ``memmove`` (which lets other threads run) to copy from; None if nothing."""
    if not data.readonly:
        return ctypes.addressof(ctypes.c_ubyte.from_buffer(data)) if len(data) else b""
    return data.obj if type(data.obj) is bytes and len(data.obj) == len(data) else None


class Lease:
    """The right to use a segment; it ends with the last view, array or tensor that holds it.

    Args:
        ended: called with the segment and whether it is lost: somebody we know nothing of may
            still use it. In any thread at any moment, so it may do no more than take a note.
        grant: what the lease is part of; if that is not given when the lease ends, nobody is told.
    """

    __slots__ = ("_ended", "_forks", "_grant", "lost", "segment")

    def __init__(
        self, segment: Segment, ended: Callable[[Segment, bool], Any], grant: Grant | None = None
    ) -> None:
        self.segment = segment
        self.lost = False
        self._grant = grant
        self._ended = ended
        self._forks = _forks

    def __del__(self) -> None:
        if self._grant is None or self._grant.given:
            # A child forked meanwhile may have the same views.
            self._ended(self.segment, self.lost or self._forks != _forks)


class Grant:
    """Several leases that begin in one step."""

    __slots__ = ("given",)

    def __init__(self) -> None:
        self.given = False


_forks = 0


def lease_of(buffer: Any) -> Lease | None:
    """The lease of the segment that a buffer lies in, if it lies in one."""
    return getattr(getattr(buffer, "obj", None), "lease", None)


def offset_in(segment: Segment, view: memoryview) -> int:
    """Where in a segment a view of it begins, in bytes."""
    if not len(view):
        return 0
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(view)) - segment.address


class Pool:
    """The segments that this process sends payloads in.

    Args:
        limit: bytes in use from which on it gives none; None: a quarter of the machine's memory.
        clock: monotonic seconds.
    """

    def __init__(
        self, limit: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        if limit is None:
            limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4
        self._limit = limit
        self._clock = clock
        self._forget()

    def _forget(self) -> None:
        """In a forked child: all segments are the parent's."""
        self._lock = threading.RLock()
        self._used: weakref.WeakSet[Segment] = weakref.WeakSet()
        self._idle: list[Segment] = []  # the one that came back last stands last
        self._ended: deque[tuple[Segment, bool]] = deque()
        self._look_at = 0.0
        self._users: weakref.WeakSet[Any] = weakref.WeakSet()

    @property
    def idle_bytes(self) -> int:
        """Memory that waits for its next use."""
        return sum(segment.written for segment in self._idle)

    @property
    def used_bytes(self) -> int:
        """Memory in use, here or by peers."""
        return sum(segment.written for segment in list(self._used))

    def lease(self, size: int) -> Lease | None:
        """A segment for a payload of so many bytes; None if it has to go another way."""
        rounded = max(SMALLEST, 1 << (size - 1).bit_length())
        with self._lock:
            self.settle()
            if self.used_bytes + size > self._limit:
                return None
            segment = self._take(rounded)
            if segment is None:
                return None
            ended = self._ended
            return Lease(segment, lambda segment, lost: ended.append((segment, lost)))

    def _take(self, size: int) -> Segment | None:
        for segment in reversed(self._idle):
            if segment.size == size:
                self._used.add(segment)
                self._idle.remove(segment)
                return segment
        if len(self._used) + len(self._idle) >= MAX_SEGMENTS:
            if not self._idle:
                return None
            self._idle.pop(0).free()
        try:
            segment = Segment.create(size)
        except (OSError, MemoryError):
            return None
        self._used.add(segment)
        return segment

    def settle(self) -> None:
        """Take back what nobody uses any more, free what has long been idle."""
        with self._lock:
            now = self._clock()
            while self._ended:
                segment, lost = self._ended.popleft()
                if lost:  # the memory stays as long as somebody has it mapped
                    self._used.discard(segment)
                else:
                    segment.idle_since = now
                    self._idle.append(segment)
                    self._used.discard(segment)
            while self._idle and (
                self._idle[0].idle_since <= now - IDLE_S or self.idle_bytes > MAX_IDLE
            ):
                self._idle.pop(0).free()

    def look(self) -> bool:
        """Settle; whether the caller is to look again in ``IDLE_S``."""
        with self._lock:
            self.settle()
            now = self._clock()
            if not self._idle or now < self._look_at:
                return False  # or somebody else comes
            self._look_at = now + IDLE_S
            return True

    def enter(self, user: Any) -> None:
        """Somebody may ask for segments."""
        self._users.add(user)

    def leave(self, user: Any) -> None:
        """Not any more. When the last one has left, nothing stays idle."""
        self._users.discard(user)
        if self._users:
            self.settle()
        else:
            self.empty()

    def empty(self) -> None:
        """Free all that is idle."""
        with self._lock:
            self.settle()
            while self._idle:
                self._idle.pop(0).free()


pool = Pool()
"""The pool of this process."""


def _after_fork_in_child() -> None:
    pool._forget()


def _after_fork_in_parent() -> None:
    global _forks
    _forks += 1


os.register_at_fork(after_in_child=_after_fork_in_child, after_in_parent=_after_fork_in_parent)

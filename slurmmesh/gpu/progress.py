"""How far a rank is in its communicators, told to other processes of the host.

Each process has one page without a name (a memfd), its board, with a slot for each communicator.
Others of the same user open it by ``/proc/PID/fd`` when an operation of theirs does not end. It
costs the rank a store for each operation, and is gone with the process.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import threading
from dataclasses import dataclass

NAME = "slurmmesh-progress"
_SLOT = struct.Struct("=QQ16s")  # word, rank + 1, key of the communicator
_SLOTS = 128
_WORD = struct.Struct("@Q")  # one store, so that a reader finds an old one or a new one
_INSIDE, _LEFT = 1, 2

OPERATIONS = (
    *("init", "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter"),
    *("send", "recv", "group", "split", "shrink", "grow", "finalize"),
)


@dataclass(frozen=True)
class Progress:
    """Where a rank is in a communicator.

    Attributes:
        sequence: how many collectives it has begun.
        operation: that it began last.
        inside: it has not ended.
        left: the rank has finalized or aborted the communicator.
    """

    sequence: int
    operation: str
    inside: bool
    left: bool


class Slot:
    """A rank's own entry for one communicator. Without room on the board it writes nowhere."""

    def __init__(self, board: Board | None, index: int) -> None:
        self._board = board
        self._index = index
        self._word = 0

    def begin(self, sequence: int, operation: str) -> None:
        """The rank is in an operation, and has begun so many collectives."""
        self._write(sequence << 16 | OPERATIONS.index(operation) << 8 | _INSIDE)

    def end(self) -> None:
        """It is in none."""
        self._write(self._word & ~_INSIDE)

    def leave(self) -> None:
        """What was last told stays there to be read, until the place is needed."""
        self._write(self._word | _LEFT)
        board, self._board = self._board, None
        if board is not None and board.pid == os.getpid():
            board.release(self._index)

    def _write(self, word: int) -> None:
        self._word = word
        board = self._board
        if board is not None and board.pid == os.getpid():
            _WORD.pack_into(board.page, self._index * _SLOT.size, word)


class Board:
    """The page of this process."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.fd = os.memfd_create(NAME, os.MFD_CLOEXEC)
        os.ftruncate(self.fd, _SLOTS * _SLOT.size)
        self.page = mmap.mmap(self.fd, _SLOTS * _SLOT.size)
        self._lock = threading.RLock()  # garbage collection may release one at any point
        self._taken: set[int] = set()
        self._turn = itertools.cycle(range(_SLOTS))

    def slot(self, key: bytes, rank: int) -> Slot:
        """A slot for a communicator: the one that was free the longest."""
        with self._lock:
            free = (i for i in itertools.islice(self._turn, _SLOTS) if i not in self._taken)
            index = next(free, -1)
            if index < 0:
                return Slot(None, 0)
            self._taken.add(index)
            _SLOT.pack_into(self.page, index * _SLOT.size, 0, 0, key)
            _SLOT.pack_into(self.page, index * _SLOT.size, 0, rank + 1, key)
        return Slot(self, index)

    def release(self, index: int) -> None:
        """The slot may be another communicator's."""
        with self._lock:
            self._taken.discard(index)


_own: Board | None = None
_making = threading.RLock()  # a signal handler may make one, too


def own_board() -> Board:
    """The board of this process; a forked child makes one of its own."""
    global _own
    with _making:
        if _own is None or _own.pid != os.getpid():
            _own = Board()
        return _own


def _forked() -> None:
    global _making, _own
    _making = threading.RLock()  # a thread of the parent may have held it
    if _own is not None and _is_board(_own.fd):
        os.close(_own.fd)
    _own = None


os.register_at_fork(after_in_child=_forked)


def _is_board(fd: int, pid: int | None = None) -> bool:
    """Of a process; None: of this one."""
    try:
        link = os.readlink(f"/proc/{pid or 'self'}/fd/{fd}")
    except OSError:
        return False
    return link.startswith(f"/memfd:{NAME}")


def read(pid: int, fd: int, key: bytes, rank: int) -> Progress | None:
    """What a process of this host tells of a rank; None: nothing, or it cannot be read."""
    if not _is_board(fd, pid):
        return None
    try:
        board = os.open(f"/proc/{pid}/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            if not _is_board(board):  # the process may have given the number to another file
                return None
            page = os.pread(board, _SLOTS * _SLOT.size, 0)
        finally:
            os.close(board)
    except OSError:
        return None
    found = [
        word
        for word, number, its_key in _SLOT.iter_unpack(page[: len(page) // _SLOT.size * _SLOT.size])
        if its_key == key and number == rank + 1
    ]
    if not found:
        return None
    word = max(found)
    code = word >> 8 & 255
    operation = OPERATIONS[code] if code < len(OPERATIONS) else "an operation"
    return Progress(word >> 16, operation, bool(word & _INSIDE), bool(word & _LEFT))

"""What the ranks run in the tests of failures: they are killed, hang, abort, leave, disagree."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_int, c_size_t, c_void_p
from typing import Any

from tests.emulator.programs_collectives import all_reduce
from tests.emulator.ranks import (
    FLOAT,
    INVALID_USAGE,
    REMOTE_ERROR,
    SUM,
    Rank,
    UniqueId,
    at,
    hear,
    say,
)


def _all_but_the_last(rank: int, size: int, unique_id: str) -> Rank:
    """All ranks reduce once. The last one then waits here to be killed."""
    own = Rank(rank, size, unique_id)
    all_reduce(own, [1.0])
    say("ready")
    if rank == size - 1:
        hear()
        time.sleep(60)
    return own


@contextmanager
def _all_reduce_of(own: Rank) -> Iterator[tuple[Any, ...]]:
    """The arguments of an all-reduce in place."""
    with own.array(ctypes.c_float, [1.0]) as one:
        yield at(one), at(one), c_size_t(1), FLOAT, SUM, own.comm, own.stream


def witness(rank: int, size: int, unique_id: str) -> None:
    """Waits in an all-reduce for a rank that dies instead; says what it is told."""
    own = _all_but_the_last(rank, size, unique_id)
    with _all_reduce_of(own) as arguments:
        own.ccl.ok("AllReduce", *arguments)
        result, text = own.failure()
        assert result == REMOTE_ERROR
        assert own.ccl.call("AllReduce", *arguments) == REMOTE_ERROR
        own.ccl.ok("CommAbort", own.comm)
        own.wait()
    own.ccl.none_left()
    say(text)


def survivor(rank: int, size: int, unique_id: str) -> None:
    """As a witness; the ranks that are left then shrink, and go on with a new one that joins."""
    own = _all_but_the_last(rank, size, unique_id)
    with _all_reduce_of(own) as arguments:
        own.ccl.ok("AllReduce", *arguments)
        own.failure()
        smaller, dead = c_void_p(), (c_int * 1)(size - 1)
        own.ccl.ok("CommShrink", own.comm, dead, 1, byref(smaller), None, 1)
        own.wait()
    own.ccl.ok("CommAbort", own.comm)
    assert all_reduce(own, [1.0], smaller) == [size - 1]
    grown, made = c_void_p(), UniqueId()
    if rank == 0:
        own.ccl.ok("CommGetUniqueId", smaller, byref(made))
        say(bytes(made).hex())
    mine = byref(made) if rank == 0 else None
    own.ccl.ok("CommGrow", smaller, size, mine, -1, byref(grown), None)
    assert all_reduce(own, [1.0], grown) == [size]
    for comm in (smaller, grown):
        own.ccl.ok("CommDestroy", comm)
    own.ccl.none_left()
    say("went on")


def joiner(size: int, unique_id: str) -> None:
    own = Rank(0, 1, "")
    made, grown = UniqueId.from_buffer_copy(bytes.fromhex(unique_id)), c_void_p()
    own.ccl.ok("CommGrow", None, size, byref(made), size - 1, byref(grown), None)
    assert all_reduce(own, [1.0], grown) == [size]
    own.ccl.ok("CommDestroy", grown)
    own.close()


def hanging(rank: int, size: int, unique_id: str) -> None:
    """As real libraries often do: the death is not noticed; abort from another thread helps."""
    own = _all_but_the_last(rank, size, unique_id)
    with _all_reduce_of(own) as arguments:
        own.ccl.ok("AllReduce", *arguments)
        waiter = threading.Thread(target=own.wait)
        waiter.start()
        assert hear() == "killed"
        waiter.join(0.3)  # long enough for deaths that are noticed
        assert waiter.is_alive()
        assert own.async_error() == 0
        own.ccl.ok("CommAbort", own.comm)
        waiter.join()
        assert not own.busy()
    own.ccl.none_left()


def deserted(rank: int, size: int, unique_id: str) -> None:
    """The last rank aborts, leaves, or calls something else."""
    how = hear()
    own = Rank(rank, size, unique_id)
    with _all_reduce_of(own) as arguments:
        if rank == size - 1 and how == "disagree":
            own.ccl.ok("Reduce", *arguments[:5], 0, *arguments[5:])
        elif rank == size - 1:
            own.ccl.ok("CommAbort" if how == "abort" else "CommDestroy", own.comm)
            return
        else:
            own.ccl.ok("AllReduce", *arguments)
        if rank == 0:
            result, text = own.failure()
            say(f"{result} {text}")
        hear()  # so that rank 0 is not told of the end of others
        own.ccl.ok("CommAbort", own.comm)
        own.wait()


def revoked(rank: int, size: int, unique_id: str) -> None:
    own = Rank(rank, size, unique_id)
    with _all_reduce_of(own) as arguments:
        if rank:  # rank 0 does not take part
            own.ccl.ok("AllReduce", *arguments)
            assert own.busy()
        own.ccl.ok("CommRevoke", own.comm, 0)
        own.wait()
        assert own.async_error() == 0
        assert own.ccl.call("AllReduce", *arguments) == INVALID_USAGE
        assert own.ccl.call("CommFinalize", own.comm) == INVALID_USAGE
    again = c_void_p()
    own.ccl.ok("CommSplit", own.comm, 0, rank, byref(again), None)
    assert all_reduce(own, [1.0], again) == [size]
    for comm in (again, own.comm):
        own.ccl.ok("CommDestroy", comm)
    own.ccl.none_left()

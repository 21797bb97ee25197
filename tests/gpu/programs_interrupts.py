"""What the tests run in which a signal, or an end, comes amid things: each is a rank."""

from __future__ import annotations

import contextlib
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from slurmmesh.errors import CollectiveAborted, CollectiveError, CollectiveTimeout
from slurmmesh.gpu import Communicator, CommunicatorId, DeviceMemory, live_communicators
from slurmmesh.gpu.library import Library
from tests.gpu.alive import alive
from tests.gpu.meeting import Rank, until


class Interrupted(BaseException):
    """What the handler of the test raises."""


@contextlib.contextmanager
def signalled(act: Callable[[], None], count: int) -> Iterator[Callable[[], None]]:
    """``act`` is called by a signal handler; the signal comes with the call number ``count``,
    from 0, of what this yields."""
    left = [count]

    def come() -> None:
        left[0] -= 1
        if left[0] == -1:
            signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, lambda *_: act())
    try:
        yield come
    finally:
        signal.signal(signal.SIGUSR1, before)


@contextlib.contextmanager
def amid_calls(act: Callable[[], None], function: str, count: int) -> Iterator[None]:
    """The signal comes with a call of the bridge, before the library has it."""
    real = Library.call
    with signalled(act, count) as come:

        def call(self: Library, name: str, *arguments: Any) -> None:
            if name == function:
                come()
            real(self, name, *arguments)

        Library.call = call  # type: ignore[method-assign]
        try:
            yield
        finally:
            Library.call = real  # type: ignore[method-assign]


class _Lock:
    """A lock of a communicator; the signal comes when it is held."""

    def __init__(self, lock: Any, come: Callable[[], None]) -> None:
        self._lock = lock
        self._come = come

    def __enter__(self) -> None:
        self._lock.__enter__()
        self._come()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__(*_)


def _raise() -> None:
    raise Interrupted


def aborted(folder: str, rank: int, size: int) -> None:
    """A signal handler aborts, whatever the main thread is about."""
    own = Rank(folder, rank, size)
    tensor = torch.ones(4)
    for turn, (function, count) in enumerate(
        [("sm_ccl_async_error", 0), ("sm_ccl_async_error", 30), ("sm_ccl_all_reduce", 0)]
    ):
        comm = own.communicator(f"calls-{turn}")
        if rank == 0:
            with (
                amid_calls(lambda comm=comm: comm.abort("by signal"), function, count),  # type: ignore[misc]
                pytest.raises(CollectiveAborted, match="by signal"),
            ):
                comm.all_reduce(tensor)
        own.meet(f"aborted-{turn}")
        comm.abort()
    for count in range(2):
        comm = own.communicator(f"lock-{count}")
        if rank == 0:
            with signalled(lambda comm=comm: comm.abort("by signal"), count) as come:  # type: ignore[misc]
                lifetime = comm._engine.lifetime
                lifetime.lock = _Lock(lifetime.lock, come)  # type: ignore[assignment]
                with pytest.raises(CollectiveAborted, match="by signal"):
                    comm.all_reduce(tensor)
        own.meet(f"locked-{count}")
        comm.abort()
    assert live_communicators() == ()


def interrupted(folder: str, rank: int, size: int) -> None:
    """A wait is interrupted: the tensor is kept until the operation has ended, or is aborted."""
    own = Rank(folder, rank, size)
    comm = own.communicator()
    tensor = torch.ones(4)
    if rank == 0:
        gone = weakref.ref(tensor)
        with amid_calls(_raise, "sm_ccl_async_error", 5), pytest.raises(Interrupted):
            comm.all_reduce(tensor)
        del tensor
        gc.collect()
        assert gone() is not None
        own.tell("interrupted")
        comm.wait()
        gc.collect()
        assert gone() is None
    else:
        own.hear("interrupted", 0)
        comm.all_reduce(tensor)
        assert tensor.tolist() == [2.0] * 4
    for turn, (function, count) in enumerate([("sm_ccl_recv", 0), ("sm_ccl_group_start", 0)]):
        tensor = torch.ones(4)
        if rank == 0:
            with amid_calls(_raise, function, count), pytest.raises(Interrupted):
                _swap(comm, tensor, 1)
            with pytest.raises(CollectiveAborted, match="Interrupted was raised amid group"):
                comm.all_reduce(tensor)
        own.meet(f"over-{turn}")
        comm.abort()
        comm = own.communicator(f"next-{turn}")
    comm.finalize()


def _swap(comm: Communicator, tensor: torch.Tensor, other: int) -> None:
    with comm.group():
        comm.send(tensor, other)
        comm.recv(tensor.clone(), other)


def interrupted_split(folder: str, rank: int, size: int) -> None:
    """A split is interrupted at each of its stages: nothing is left, and nobody waits for ever."""
    own = Rank(folder, rank, size)
    own.communicator("first").finalize()  # what the libraries open at first, they keep
    before = alive()
    for turn, (function, count) in enumerate(
        [("sm_ccl_all_gather", 0), ("sm_stream_query", 3), ("sm_ccl_split", 0)]
    ):
        comm = own.communicator(f"turn-{turn}", timeout=30)
        if rank == 0:
            with amid_calls(_raise, function, count), pytest.raises(Interrupted):
                comm.split(0)
            assert comm not in live_communicators()
        elif turn == 2:  # the other ones come as far as the split itself
            with pytest.raises(CollectiveError):
                comm.split(0)
        own.meet(f"over-{turn}")
        comm.abort()
        del comm
        assert live_communicators() == ()
        assert alive()["owners"] == 0
    until(lambda: alive()["streams"] == before["streams"])  # they end when their work has


def others_go_on(folder: str, rank: int, size: int) -> None:
    """Whoever takes a tensor may delete it with Python's lock: threads that watch go on."""
    numpy = pytest.importorskip("numpy")
    own = Rank(folder, rank, size)
    comm = own.communicator()
    if rank == 0:
        memory = DeviceMemory.reserve(1)
        taken, capsule = numpy.from_dlpack(memory), memory.__dlpack__()
        memory.free()
        tensor = torch.ones(4)
        comm.all_reduce(tensor, wait=False)
        deleting = threading.Event()

        def abort() -> None:
            deleting.wait()
            comm.abort("so that the device has nothing left to do")

        watching = threading.Thread(target=abort)
        watching.start()
        deleting.set()
        del taken, capsule
        watching.join()
        assert alive()["owners"] == 0
    own.meet("over")
    comm.abort()


def lonely() -> None:
    """Nobody comes for whoever is to be a new rank."""
    for rank in (0, 1):
        with pytest.raises(CollectiveTimeout, match=r"within 0\.2 s"):
            Communicator.join(CommunicatorId.new(), rank, 2, timeout=0.2)
    until(lambda: threading.active_count() == 1)


def aborted_amid_pending() -> None:
    """A signal handler aborts while an operation is put down as pending, or as done."""
    for count in range(2):
        comm = Communicator(CommunicatorId.new(), 0, 1)
        tensor = torch.ones(4)
        gone = weakref.ref(tensor)
        with signalled(lambda comm=comm: comm.abort("by signal"), count) as come:  # type: ignore[misc]
            pending = comm._engine.lifetime.pending
            pending._lock = _Lock(pending._lock, come)
            # Once it has ended, nothing can fail it any more.
            expected = contextlib.nullcontext() if count else pytest.raises(CollectiveAborted)
            with expected:
                comm.all_reduce(tensor)
        assert pending.lasts == []
        del tensor, expected
        gc.collect()
        assert gone() is None
        with pytest.raises(CollectiveAborted, match="by signal"):
            comm.wait()

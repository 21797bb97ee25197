"""What the tests of how communicators end run: threads, watchers, forks."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from slurmmesh import gpu
from slurmmesh.errors import CollectiveTimeout, DeviceBusy, GpuForked, UsageError
from slurmmesh.gpu import Communicator, CommunicatorId, DeviceMemory
from slurmmesh.gpu.library import Library
from tests.gpu.alive import alive, descriptors
from tests.gpu.meeting import Rank
from tests.gpu.programs_failures import told


@contextlib.contextmanager
def held(function: str) -> Iterator[threading.Event]:
    """Calls of the bridge by this name hang; yields what tells that one does."""
    real, there, go = Library.call, threading.Event(), threading.Event()

    def call(self: Library, name: str, *arguments: Any) -> None:
        if name == function:
            there.set()
            go.wait()
        real(self, name, *arguments)

    Library.call = call  # type: ignore[method-assign]
    try:
        yield there
    finally:
        Library.call = real  # type: ignore[method-assign]
        go.set()


def finalized_by_two() -> None:
    """A second thread's finalize, amid the first one's and after it, does nothing."""
    comm = Communicator(CommunicatorId.new(), 0, 1)
    failed: list[BaseException] = []

    def finalize() -> None:
        try:
            comm.finalize()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=finalize) for _ in range(4)]
    with held("sm_ccl_finalize") as there:
        threads[0].start()
        there.wait()
        for thread in threads[1:]:
            thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    with pytest.raises(UsageError, match="timeout=0"):
        Communicator(CommunicatorId.new(), 0, 1).finalize(timeout=0)


def not_given_back() -> str:
    """An old library's destroy hangs."""
    comm = Communicator(CommunicatorId.new(), 0, 1)
    with held("sm_ccl_destroy"), pytest.raises(CollectiveTimeout) as raised:
        comm.finalize(timeout=0.3)
    comm.finalize()
    assert gpu.live_communicators() == ()
    return str(raised.value)


def one_deadline(folder: str, rank: int, size: int) -> str:
    """The time of finalize is also that of joining, and of what was queued."""
    own = Rank(folder, rank, size)
    if rank:
        own.hear("over", 0)
        return ""
    comm = Communicator(CommunicatorId.new(), 0, 2, blocking=False, timeout=1000)
    with pytest.raises(CollectiveTimeout, match=r"have joined within 0\.2 s"):
        comm.finalize(timeout=0.2)
    own.tell("over")
    return ""


def freed_amid(folder: str, rank: int, size: int) -> dict[str, Any] | None:
    """Memory is freed while a collective on its device hangs: it stays, and is freed later."""
    own = Rank(folder, rank, size)
    before = alive()
    with own.communicator() as comm:
        if rank:
            own.hear("refused", 0)
            comm.all_reduce(torch.ones(1 << 21, dtype=torch.uint8))
            own.meet("over")
            return None
        memory, other, forgotten = (DeviceMemory.reserve(1) for _ in range(3))
        tensor = other.tensor()
        comm.all_reduce(memory, wait=False)
        mapped = alive()["mappings"]
        with pytest.raises(DeviceBusy) as raised:
            memory.free(timeout=0.2)
        with pytest.raises(DeviceBusy):
            forgotten.free(timeout=0.1)
        del forgotten
        other.free()  # its tensor has it
        assert memory.freed
        assert other.freed
        with pytest.raises(UsageError, match="was freed"):
            memory.read()
        assert alive()["mappings"] == mapped
        assert gpu.live_communicators() == (comm,)
        own.tell("refused")
        comm.wait()
        memory.free()
        del tensor
        assert alive()["owners"] == before["owners"]
        own.meet("over")
    comm, memory = Communicator(CommunicatorId.new("alone"), 0, 1), DeviceMemory.reserve(1)
    comm.recv(memory, 0, wait=False)
    with pytest.raises(DeviceBusy, match=r"recv of rank 0 of 1 in 'alone'"):
        memory.free(timeout=0.1)
    comm.abort()
    DeviceMemory.reserve(1).free()
    assert alive()["owners"] == before["owners"]
    return told(raised.value)


def watched() -> list[str]:
    """A watcher that fails: only the beginning is refused, and what has happened stays so."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("slurmmesh.gpu.live").addHandler(handler)
    heard: list[str] = []

    def fail(_: object, operation: object, moment: str) -> None:
        if moment != "begins":
            raise PermissionError(moment)

    stops = [gpu.watch_operations(fail), gpu.watch_operations(lambda *told: heard.append(told[2]))]
    tensor = torch.ones(4)
    comm = Communicator(CommunicatorId.new("watched"), 0, 1)
    comm.all_reduce(tensor)
    with pytest.raises(CollectiveTimeout):
        comm.recv(tensor, 0, timeout=0.2)
    for stop in stops:
        stop()
    assert heard == ["begins", "ends", "begins", "fails"]
    return said


def forked() -> None:
    """A child has no descriptor of its parent's board, and a thread's lock does it no harm."""
    comm = Communicator(CommunicatorId.new(), 0, 1)
    part = comm.split(0)
    assert part is not None
    before = descriptors()
    locked, over = threading.Event(), threading.Event()

    def hold() -> None:
        with comm._engine.lifetime.slot._board._lock:  # type: ignore[union-attr]
            locked.set()
            over.wait()

    holding = threading.Thread(target=hold)
    holding.start()
    locked.wait()
    pid = os.fork()
    if pid == 0:
        try:
            _use(comm, before)
            del comm, part
            gc.collect()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    over.set()
    holding.join()
    assert code == 0
    part.finalize()
    comm.finalize()


def _use(comm: Communicator, before: int) -> None:
    assert descriptors() == before - 1
    for use in (
        *(comm.wait, comm.finalize, lambda: comm.split(0), lambda: comm.shrink([1]), comm.revoke),
        *(lambda: comm.all_reduce(torch.ones(4)), comm.growth_id, lambda: comm.group().__enter__()),
    ):
        with pytest.raises((GpuForked, UsageError)):
            use()
    assert not comm.ready
    assert isinstance(comm.async_error(), GpuForked)
    comm.abort()
    assert "rank 0 of 1" in repr(comm)
    assert gpu.this_peer(0).board >= 0  # one of its own

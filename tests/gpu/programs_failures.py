"""What the tests of communicators that fail run: each is a rank, in a process of its own."""

from __future__ import annotations

import os
import threading
import time
from typing import Any

import pytest
import torch

from slurmmesh import gpu
from slurmmesh.errors import CollectiveAborted, CollectiveError, CollectiveTimeout
from slurmmesh.gpu import Communicator, CommunicatorId, DeviceMemory, live_communicators
from tests.gpu.alive import alive
from tests.gpu.meeting import Rank, until


def told(error: CollectiveError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "text": str(error),
        "peers": error.peers,
        "late": error.late,
        "operation": error.operation,
        "rank": error.rank,
        "size": error.size,
        "world": error.world,
    }


def witness(folder: str, rank: int, size: int, timeout: float) -> dict[str, Any] | None:
    """The last rank does not take part in the second all_reduce: it is killed or stopped."""
    own = Rank(folder, rank, size)
    comm = own.communicator(timeout=timeout)
    tensor = torch.ones(4)
    comm.all_reduce(tensor)
    own.tell("ready", os.getpid())
    if rank == size - 1:
        own.hear("never", 0)
    own.hear("go", -1)
    with pytest.raises(CollectiveError) as raised:
        comm.all_reduce(tensor)
    with pytest.raises(CollectiveAborted, match="aborted"):
        comm.all_reduce(tensor)
    comm.finalize()
    assert alive()["streams"] == 1
    own.meet_some("failed", None, range(size - 1))  # whoever ends is dead for the others, too
    return told(raised.value)


def astray(folder: str, rank: int, size: int) -> dict[str, Any]:
    """Ranks that call different things, or leave, and pairs whose other half does not come."""
    own = Rank(folder, rank, size)
    comm = own.communicator(timeout=0.5)
    tensor = torch.ones(4)
    own.meet("in")
    if rank:
        own.hear("failed", 0)
        comm.abort()
    with pytest.raises(CollectiveError) as raised:
        comm.recv(tensor, 1 - rank)
    own.tell("failed")
    return told(raised.value)


def elsewhere(folder: str, rank: int, size: int) -> dict[str, Any] | None:
    """Nothing is known of ranks on other hosts but what the program's supervision knows."""
    own = Rank(folder, rank, size)
    dead: list[int] = []
    comm = own.communicator(peers=[], dead=lambda: dead, timeout=60)
    own.meet("in")
    if rank:
        own.hear("failed", 0)
        return None
    dead.append(1)
    with pytest.raises(CollectiveError) as raised:
        comm.all_reduce(torch.ones(4))
    own.tell("failed")
    return told(raised.value)


def late_joiner(folder: str, rank: int, size: int) -> dict[str, Any] | None:
    own = Rank(folder, rank, size)
    peers = own.meet("peer", gpu.this_peer(rank))
    if rank:
        own.hear("failed", 0)
        return None
    before = alive()
    comm = Communicator(
        CommunicatorId.new("late"), 0, size, peers=peers, timeout=0.5, blocking=False
    )
    assert not comm.ready
    assert comm.operation is not None
    assert comm.operation.name == "init"
    with pytest.raises(CollectiveTimeout) as raised:
        comm.all_reduce(torch.ones(4))
    with pytest.raises(CollectiveTimeout):
        Communicator(CommunicatorId.new("late"), 0, size, peers=peers, timeout=0.2)
    assert alive()["descriptors"] <= before["descriptors"] + 2  # ids that nobody came for
    own.tell("failed")
    return told(raised.value)


def aborted(folder: str, rank: int, size: int, rounds: int) -> None:
    """Abort from other threads frees a call that hangs; it races with calls that end."""
    own = Rank(folder, rank, size)
    tensors = [torch.ones(4) for _ in range(4)]
    comm = own.communicator()
    if rank == 0:  # rank 1 does not take part
        errors: list[Exception] = []

        def wait() -> None:
            try:
                comm.all_reduce(tensors[0])
            except CollectiveAborted as error:
                errors.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        until(lambda: comm.operation is not None)
        aborting = [threading.Thread(target=comm.abort, args=("enough",)) for _ in range(4)]
        for thread in (*aborting, waiting):
            thread.start() if thread is not waiting else None
        for thread in (*aborting, waiting):
            thread.join()
        assert "aborted: enough" in str(errors[0])
    own.meet("aborted")
    comm.abort()
    for turn in range(rounds):
        comm = own.communicator(f"round-{turn}")

        def use(comm: Communicator, tensor: torch.Tensor) -> None:
            try:
                while True:
                    comm.all_reduce(tensor)
                    comm.async_error()
            except CollectiveError:
                pass

        users = [threading.Thread(target=use, args=(comm, tensors[0]))]
        users += [threading.Thread(target=_poll, args=(comm,)) for _ in range(3)]
        for thread in users:
            thread.start()
        time.sleep(0.002 * (turn % 5))
        ends = [threading.Thread(target=comm.abort) for _ in range(3)]
        for thread in ends:
            thread.start()
        for thread in (*ends, *users):
            thread.join()
        assert comm.operation is None
        own.meet(f"over-{turn}")
    assert live_communicators() == ()


def _poll(comm: Communicator) -> None:
    while comm in live_communicators():
        comm.async_error()
        _ = comm.operation


def at_exit(folder: str, rank: int, size: int) -> None:
    """The interpreter ends while operations wait; the memory was made after the communicator."""
    own = Rank(folder, rank, size)
    own.hang = comm = own.communicator()  # type: ignore[attr-defined]
    if rank:
        own.hear("gone", -1)
        return
    memory = DeviceMemory.reserve(1)
    comm.all_reduce(memory.tensor("float32"), wait=False)
    globals()["kept"] = (comm, memory)


# ------------------------------------------------------------------ others made of it


def regrouped(folder: str, rank: int, size: int) -> list[Any]:
    """Split; then the last rank dies: the others revoke, shrink, and grow again."""
    own = Rank(folder, rank, size)
    comm = own.communicator(on_failure="revoke")
    half = comm.split(rank % 2, key=-rank)
    assert half is not None
    ranks = torch.tensor([float(rank)])
    out = torch.zeros(half.size)
    half.all_gather(ranks, out)
    assert out.tolist() == [r for r in reversed(range(size)) if r % 2 == rank % 2]
    assert {p.pid for p in half.peers.values()} == {
        p.pid for r, p in comm.peers.items() if r % 2 == rank % 2
    }
    none = comm.split(None if rank == 0 else 1)
    assert (none is None) == (rank == 0)
    for made in (half, none):
        if made is not None:
            made.finalize()
    own.tell("ready", os.getpid())
    if rank == size - 1:
        own.hear("never", 0)
    own.hear("go", -1)
    with pytest.raises(CollectiveError) as raised:
        comm.all_reduce(ranks)
    with pytest.raises(CollectiveAborted, match="revoked"):
        comm.all_reduce(ranks)
    smaller = comm.shrink(raised.value.peers)
    assert comm not in live_communicators()
    one = torch.ones(1)
    smaller.all_reduce(one)
    id = smaller.growth_id() if rank == 0 else None
    told_ = own.meet_some("growth", id, range(size - 1))
    grown = smaller.grow(told_[0], size)
    grown.all_reduce(one)
    smaller.finalize()
    grown.finalize()
    return [raised.value.peers, one.item()]


def newcomer(folder: str, rank: int, size: int) -> float:
    own = Rank(folder, rank, size)
    grown = Communicator.join(own.hear("growth", 0), rank, size, timeout=60)
    one = torch.ones(1)
    grown.all_reduce(one)
    grown.finalize()
    return one.item()

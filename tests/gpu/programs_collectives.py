"""What the tests of communicators run: each is a rank, in a process of its own."""

from __future__ import annotations

import gc
import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmmesh import gpu
from slurmmesh.errors import (
    CollectiveAborted,
    CollectiveTimeout,
    GpuForked,
    GpuUnsupported,
    UsageError,
)
from slurmmesh.gpu import Communicator, CommunicatorId, DeviceMemory, Stream, live_communicators
from tests.gpu.alive import alive, maps, resident_bytes
from tests.gpu.meeting import Rank, until

DTYPES = [
    *(torch.int8, torch.uint8, torch.int32, torch.uint32, torch.int64, torch.uint64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.float8_e4m3fn, torch.float8_e5m2),
]
MOVED = [*DTYPES, torch.bool, torch.int16, torch.complex64]
REDUCE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda all_of: all_of.sum(0),
    "product": lambda all_of: all_of.prod(0),
    "max": lambda all_of: all_of.amax(0),
    "min": lambda all_of: all_of.amin(0),
    "average": lambda all_of: all_of.sum(0) / len(all_of),
}


def numbers(ranks: int, count: int, seed: int) -> torch.Tensor:
    """What each rank has: whole numbers that every type, and what is made of them, can hold."""
    return torch.randint(
        0, 3, (ranks, count), generator=torch.Generator().manual_seed(seed)
    ).double()


def cast(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if not dtype.is_floating_point and not dtype.is_complex:
        values = values.floor()
    return values.to(dtype).to(gpu_device())


def gpu_device() -> str:
    return "cpu" if gpu.platform().emulated else "cuda"


def check(found: torch.Tensor, values: torch.Tensor) -> None:
    assert (
        found.cpu().view(torch.uint8).tolist()
        == cast(values, found.dtype).cpu().view(torch.uint8).tolist()
    )


# ------------------------------------------------------------------ what they compute


def collectives(folder: str, rank: int, size: int, examples: int) -> None:
    """Every collective with every type and reduction, against torch."""
    own = Rank(folder, rank, size)
    with own.communicator(timeout=30) as comm:
        counts = st.one_of(st.integers(0, 40), st.just(20_000))

        # All ranks draw the same.
        @settings(derandomize=True, database=None, deadline=None, max_examples=examples)
        @given(st.sampled_from(DTYPES), st.sampled_from(sorted(REDUCE)), counts, st.integers(0, 99))
        def reduce(dtype: torch.dtype, op: Any, count: int, seed: int) -> None:
            has = numbers(size, count * size, seed)
            result, root = REDUCE[op](has), seed % size
            mine = cast(has[rank], dtype)
            out = torch.zeros_like(mine)
            comm.all_reduce(mine, op, out=out)
            check(out, result)
            check(mine, has[rank])
            out = torch.zeros_like(mine)
            comm.reduce(mine, root, op, out=out)
            check(out, result if rank == root else torch.zeros_like(result))
            part = torch.zeros_like(mine[:count])
            comm.reduce_scatter(mine, part, op)
            check(part, result[rank * count : (rank + 1) * count])
            comm.all_reduce(mine, op)
            check(mine, result)

        @settings(derandomize=True, database=None, deadline=None, max_examples=examples)
        @given(st.sampled_from(MOVED), counts, st.integers(0, 99))
        def move(dtype: torch.dtype, count: int, seed: int) -> None:
            has, root = numbers(size, count, seed), seed % size
            mine = cast(has[rank], dtype)
            every = torch.zeros_like(cast(has.reshape(-1), dtype))
            comm.all_gather(mine, every)
            check(every, has.reshape(-1))
            with comm.group():
                comm.send(mine, (rank + 1) % size)
                comm.recv(every[:count], (rank - 1) % size)
            check(every[:count], has[(rank - 1) % size])
            comm.broadcast(mine, root)
            check(mine, has[root])

        reduce()
        move()


def memory(folder: str, rank: int, size: int) -> None:
    """DeviceMemory, interfaces, streams, several operations in a group, waiting later."""
    own = Rank(folder, rank, size)
    with own.communicator() as comm, DeviceMemory.reserve(1) as mine:
        mine.fill(rank)
        comm.broadcast(mine, root=size - 1)
        assert mine.read(3) == bytes([size - 1]) * 3
        floats = mine.tensor("float32", (4,))
        floats.fill_(1.0)
        comm.all_reduce(floats)
        assert floats.tolist() == [size] * 4
        own_stream = Stream()
        for stream in (0, Stream(), own_stream.number):
            comm.all_reduce(floats, "max", stream=stream)
        before = comm.operation
        assert before is None
        comm.all_reduce(floats, stream=Stream(), wait=False)
        comm.all_reduce(floats, wait=False, stream=0)
        assert comm.operation is not None
        comm.wait()
        assert comm.operation is None
        assert floats.tolist() == [size**3] * 4
        with comm.group():
            comm.all_reduce(floats[:2], "average")
            comm.all_reduce(floats[2:], "max")
        assert floats.tolist() == [size**3] * 4
        with pytest.raises(UsageError), comm.group():  # noqa: PT012
            comm.all_reduce(floats)
            comm.all_reduce("no tensor")
        assert floats.tolist() == [size**3] * 4


class Interface:
    def __init__(self, **told: Any) -> None:
        base = {"shape": (4,), "typestr": "<f4", "data": (1 << 20, False), "version": 3}
        self.__cuda_array_interface__ = {**base, **told}


def refused() -> None:
    """Nothing is queued of what makes no sense; the communicator can be used afterwards."""
    comm = Communicator(CommunicatorId.new("alone"), 0, 1)
    four = torch.ones(4, device=gpu_device())
    whole = torch.ones(8, device=gpu_device())
    for call, said in (
        (lambda: comm.all_reduce([1.0]), "tensor is list: pass"),
        (lambda: comm.all_reduce(whole[::2]), "not contiguous"),
        (lambda: comm.all_reduce(four, out=whole), "tensor has 4 elements, out has 8"),
        (lambda: comm.all_reduce(four, out=four.int()), "tensor is of float32, out of int32"),
        (lambda: comm.all_reduce(whole[:5], out=whole[3:]), "overlap"),
        (lambda: comm.all_reduce(four, "mean"), "op='mean': it is one of sum"),
        (lambda: comm.all_reduce(four.bool()), "bool, which cannot be reduced"),
        (lambda: comm.all_reduce(four.to(torch.complex64)), "view_as_real"),
        (lambda: comm.all_gather(four, whole), "it takes 4"),
        (lambda: comm.reduce_scatter(four, whole), "it takes 8"),
        (lambda: comm.broadcast(four, root=1), "root=1: ranks are 0 to 0"),
        (lambda: comm.send(four, -1), "to=-1"),
        (lambda: comm.recv(four, True), "source=True"),
        (lambda: comm.all_reduce(four, timeout=0), "timeout=0"),
        (lambda: comm.all_reduce(four, stream="fast"), "'fast' is no stream"),
        (lambda: comm.all_reduce(Interface(typestr=">f4")), "'>f4'"),
        (lambda: comm.all_reduce(Interface(mask=four)), "has a mask"),
        (lambda: comm.all_reduce(Interface(data=(1 << 20, True))), "read-only"),
        (lambda: comm.all_reduce(Interface(strides=(8,))), "not contiguous"),
        (lambda: comm.all_reduce(Interface(data=None)), "not valid"),
        (lambda: comm.all_reduce(Interface(data=(1,))), "not valid"),
        (lambda: comm.all_reduce(Interface(shape=(-4,))), "not valid"),
        (lambda: comm.all_reduce(Interface(strides=4)), "not valid"),
        (lambda: comm.all_reduce(Interface(stream="fast")), "'fast' is no stream"),
        (lambda: comm.all_reduce(Interface(data=(0, False))), "has no memory"),
        (lambda: comm.all_reduce(Interface(data=(1 << 65, False))), "has no memory"),
        (lambda: comm.all_reduce(torch.ones(4, device="meta")), "has no memory"),
        (lambda: comm.all_reduce(four, stream=1 << 64), "is no stream"),
        (lambda: comm.split(-2), "color=-2"),
        (lambda: comm.shrink([0]), "to be left out"),
        (lambda: comm.shrink([1]), "ranks 0 to 0"),
        (lambda: comm.shrink([]), "ranks 0 to 0"),
        (lambda: comm.shrink(None), "without=None"),  # type: ignore[arg-type]
        (lambda: comm.shrink(5), "without=5"),  # type: ignore[arg-type]
        (lambda: comm.shrink([0, "1"]), "ranks 0 to 0"),  # type: ignore[list-item]
        (lambda: comm.shrink([[0]]), "ranks 0 to 0"),  # type: ignore[list-item]
        (lambda: Communicator(CommunicatorId.new(), 1, 1), "rank 1 of 1"),
        (lambda: Communicator(CommunicatorId.new(), 0, 1, device=9), "no device 9"),
        (lambda: Communicator(CommunicatorId.new(), 0, 1 << 40), "rank 0 of"),
        (lambda: Communicator(CommunicatorId.new(), 0, 1, peers=[0]), "this_peer"),  # type: ignore[list-item]
        (lambda: Communicator(CommunicatorId.new(), 0, 1, peers=None), "this_peer"),  # type: ignore[arg-type]
        (lambda: Communicator(b"id", 0, 1), "CommunicatorId is needed"),  # type: ignore[arg-type]
        (lambda: CommunicatorId("x", b"short"), "128 bytes"),
        (lambda: pickle.dumps(comm), "by pickle"),
    ):
        with pytest.raises(UsageError, match=said.replace("(", r"\(")):
            call()
    with comm.group(), pytest.raises(UsageError, match="those of the group"):
        comm.all_reduce(four, wait=False)
    with comm.group(), pytest.raises(UsageError, match="not nested"), comm.group():
        pass
    comm.all_reduce(four)
    assert four.tolist() == [1.0] * 4
    assert pickle.loads(pickle.dumps(CommunicatorId("name", bytes(128)))).name == "name"
    assert "data" not in repr(CommunicatorId.new())
    comm.finalize()
    comm.finalize()
    comm.abort()
    with pytest.raises(UsageError, match="'alone' was finalized"):
        comm.all_reduce(four)


def alone() -> None:
    """A communicator of one rank: operations, other threads, the end, a forked child."""
    tensor = torch.ones(4, device=gpu_device())
    seen: list[tuple[str, int, str]] = []
    stop = gpu.watch_operations(lambda _, op, moment: seen.append((op.name, op.sequence, moment)))
    with Communicator(CommunicatorId.new(), 0, 1, blocking=False) as comm:
        assert live_communicators() == (comm,)
        until(lambda: comm.ready)
        for op in REDUCE:
            comm.all_reduce(tensor, op)  # type: ignore[arg-type]
        comm.broadcast(tensor)
        stop()
        out = torch.zeros_like(tensor)
        comm.reduce(tensor, out=out)
        comm.all_gather(out, tensor)
        comm.reduce_scatter(tensor, out)
        with comm.group():
            comm.send(tensor, 0)
            comm.recv(out, 0)
        assert out.tolist() == [1.0] * 4
        assert comm.async_error() is None
        pid = os.fork()
        if pid == 0:
            with pytest.raises(GpuForked, match="belongs to process"):
                comm.all_reduce(tensor)
            comm.abort()
            assert live_communicators() == ()
            gc.collect()
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert live_communicators() == ()
    assert seen[-1] == ("broadcast", 6, "ends")
    assert len(seen) == 12

    def forbid(*_: object) -> None:
        raise PermissionError

    comm = Communicator(CommunicatorId.new(), 0, 1)
    stop = gpu.watch_operations(forbid)
    with pytest.raises(PermissionError):
        comm.all_reduce(tensor)
    stop()
    comm.all_reduce(tensor)
    with pytest.raises(KeyError), comm:
        raise KeyError
    with pytest.raises(CollectiveAborted, match="KeyError was raised"):
        comm.all_reduce(tensor)


def many(count: int) -> list[int]:
    """Communicators made and ended in each way leave nothing."""

    def one(turn: int) -> None:
        comm = Communicator(CommunicatorId.new(), 0, 1)
        comm.all_reduce(tensor)
        if turn % 3:
            comm.finalize() if turn % 3 == 1 else comm.abort()

    tensor = torch.ones(4, device=gpu_device())
    for turn in range(30):
        one(turn)
    gc.collect()
    before, resident, mapped = alive(), resident_bytes(), maps()
    for turn in range(count):
        one(turn)
    gc.collect()
    until(lambda: alive() == before)
    assert live_communicators() == ()
    return [resident_bytes() - resident, maps() - mapped]


def old(folder: str, rank: int, size: int) -> str:
    """An RCCL that can only block: all but what it lacks works, and hangs end in time."""
    own = Rank(folder, rank, size)
    comm = own.communicator("first")
    tensor = torch.ones(4)
    comm.all_reduce(tensor)
    with comm.group():
        comm.send(tensor, (rank + 1) % size)
        comm.recv(torch.empty(4), (rank - 1) % size)
    for lacking in (lambda: comm.split(0), lambda: comm.shrink([1 - rank]), comm.revoke):
        with pytest.raises(GpuUnsupported, match="no such function"):
            lacking()
    comm.finalize()
    if rank:
        own.tell("peer", gpu.this_peer(rank))
        own.hear("done", 0)
        return ""
    peer = own.hear("peer", 1)
    with pytest.raises(CollectiveTimeout) as raised:
        Communicator(CommunicatorId.new("second"), 0, 2, peers=[peer], timeout=0.3)
    own.tell("done")
    assert raised.value.peers == raised.value.late == (1,)
    return str(raised.value)

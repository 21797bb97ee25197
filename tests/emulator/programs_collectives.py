"""What the ranks of the tests of the emulated collectives run, each in a process of its own."""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from ctypes import byref, c_int, c_size_t, c_void_p

from tests.emulator.face import open_files
from tests.emulator.ranks import (
    AVG,
    BYTE,
    DOUBLE,
    FLOAT,
    IN_PROGRESS,
    INT,
    INVALID_ARGUMENT,
    INVALID_USAGE,
    MAX,
    MIN,
    PROD,
    SUM,
    Ccl,
    Rank,
    UniqueId,
    at,
    config,
    say,
)


def all_reduce(own: Rank, values: list[float], comm: c_void_p | None = None) -> list[float]:
    with own.array(ctypes.c_float, values) as array:
        count = c_size_t(len(values))
        own.ccl.ok(
            "AllReduce", at(array), at(array), count, FLOAT, SUM, comm or own.comm, own.stream
        )
        own.wait()
        return list(array)


def collectives(rank: int, size: int, unique_id: str, platform: str = "hip") -> None:
    own = Rank(rank, size, unique_id, platform)
    ccl, comm, stream = own.ccl, own.comm, own.stream
    asked = c_int()
    ccl.ok("CommCount", comm, byref(asked))
    assert asked.value == size
    ccl.ok("CommUserRank", comm, byref(asked))
    assert asked.value == rank
    ccl.ok("CommCuDevice", comm, byref(asked))
    assert asked.value == 0
    everybody = range(size)

    assert all_reduce(own, [rank, 1.5]) == [sum(everybody), 1.5 * size]
    count = 100_000  # many pieces of a ring
    three = c_size_t(3)
    with (
        own.array(ctypes.c_int, [rank + 1] * count) as ints,
        own.array(ctypes.c_int, [0] * count * size) as many,
    ):
        for reduction, expected in ((MAX, size), (MIN, 1), (SUM, sum(everybody) + size)):
            ccl.ok("AllReduce", at(ints), at(many), c_size_t(count), INT, reduction, comm, stream)
            own.wait()
            assert set(many[:count]) == {expected}

        ccl.ok("AllGather", at(ints), at(many), c_size_t(count), INT, comm, stream)
        own.wait()
        assert [many[i * count] for i in everybody] == [i + 1 for i in everybody]
        assert [many[(i + 1) * count - 1] for i in everybody] == [i + 1 for i in everybody]

        many[: 3 * size] = [part * 10 + rank for part in everybody for _ in range(3)]
        ccl.ok("ReduceScatter", at(many), at(ints), three, INT, SUM, comm, stream)
        own.wait()
        assert list(ints[:3]) == [rank * 10 * size + sum(everybody)] * 3

        ints[:3] = [rank, -rank, 7]
        ccl.ok("Broadcast", at(ints), at(ints), three, INT, size - 1, comm, stream)
        own.wait()
        assert list(ints[:3]) == [size - 1, 1 - size, 7]

        ints[:3] = [2, rank + 1, -3]
        many[:3] = [0, 0, 0]
        ccl.ok("Reduce", at(ints), at(many), three, INT, PROD, 1, comm, stream)
        own.wait()
        factorial = 1
        for i in everybody:
            factorial *= i + 1
        product = [2**size, factorial, (-3) ** size]
        assert list(many[:3]) == (product if rank == 1 else [0, 0, 0])

        # In place: each rank's part lies where it belongs.
        many[rank] = rank * rank
        ccl.ok("AllGather", at(many, rank), at(many), c_size_t(1), INT, comm, stream)
        own.wait()
        assert list(many[:size]) == [i * i for i in everybody]
    with own.array(ctypes.c_double, [rank]) as mean:
        ccl.ok("AllReduce", at(mean), at(mean), c_size_t(1), DOUBLE, AVG, comm, stream)
        own.wait()
        assert mean[0] == sum(everybody) / size
    own.close()


# The numbers of a type, how they are packed, and what is exact in all of them.
TYPES = {
    0: ("b", 1),
    1: ("B", 1),
    2: ("i", 4),
    3: ("I", 4),
    4: ("q", 8),
    5: ("Q", 8),
    6: ("e", 2),
    7: ("f", 4),
    8: ("d", 8),
}
# 1, 2, 3, 4, 6, 12 and so on in formats that struct does not know.
SMALL = {
    9: lambda value: struct.unpack("<I", struct.pack("<f", value))[0] >> 16,
    10: lambda value: _minifloat(value, 7, 3),
    11: lambda value: _minifloat(value, 15, 2),
}


def _minifloat(value: float, bias: int, mantissa_bits: int) -> int:
    if value == 0:
        return 0
    exponent = 0
    while value >= 2:
        value, exponent = value / 2, exponent + 1
    return (exponent + bias) << mantissa_bits | int((value - 1) * (1 << mantissa_bits))


def pack(kind: int, value: float) -> bytes:
    if kind in SMALL:
        return SMALL[kind](value).to_bytes(2 if kind == 9 else 1, "little")
    code, _ = TYPES[kind]
    return struct.pack("<" + code, value if code in "efd" else int(value))


def types(rank: int, size: int, unique_id: str) -> None:
    """Every data type with every reduction."""
    own = Rank(rank, size, unique_id)
    mine = [float(rank + 1), 2.0]
    reductions = {
        SUM: [sum(range(1, size + 1)), 2 * size],
        PROD: [6 if size == 3 else None, 2**size],
        MAX: [size, 2],
        MIN: [1, 2],
        AVG: [(size + 1) / 2, 2],
    }
    for kind in (*TYPES, *SMALL):
        data = b"".join(pack(kind, value) for value in mine)
        for reduction, expected in reductions.items():
            with own.array(ctypes.c_ubyte, list(data)) as array:
                own.ccl.ok(
                    "AllReduce",
                    at(array),
                    at(array),
                    c_size_t(2),
                    kind,
                    reduction,
                    own.comm,
                    own.stream,
                )
                own.wait()
                want = b"".join(pack(kind, value) for value in expected)
                assert bytes(array) == want, (kind, reduction, bytes(array), want)
    own.close()


def pairs(rank: int, size: int, unique_id: str, platform: str = "hip") -> None:
    """Sends and receives in groups: rings, exchanges, to itself, and several to one peer."""
    own = Rank(rank, size, unique_id, platform)
    ccl, comm, stream = own.ccl, own.comm, own.stream
    count = 200_000  # more than a ring holds: without a group it would not end
    after, before = (rank + 1) % size, (rank - 1) % size
    with (
        own.array(ctypes.c_ubyte, [rank] * count) as out,
        own.array(ctypes.c_ubyte, [99] * count) as into,
    ):
        for to, source in ((after, before), (rank, rank)):
            ccl.ok("GroupStart")
            ccl.ok("Send", at(out), c_size_t(count), BYTE, to, comm, stream)
            ccl.ok("Recv", at(into), c_size_t(count), BYTE, source, comm, stream)
            ccl.ok("GroupEnd")
            own.wait()
            assert set(into) == {source}
        ccl.ok("GroupStart")
        ccl.ok("GroupStart")
        for part in range(4):
            out[part] = 10 * rank + part
            ccl.ok("Recv", at(into, part), c_size_t(1), BYTE, before, comm, stream)
        for part in range(4):
            ccl.ok("Send", at(out, part), c_size_t(1), BYTE, after, comm, stream)
        ccl.ok("GroupEnd")
        ccl.ok("GroupEnd")
        own.wait()
        assert list(into[:4]) == [10 * before + part for part in range(4)]
        # One way, without a group.
        if rank == 0:
            ccl.ok("Send", at(out), c_size_t(5), BYTE, 1, comm, stream)
        if rank == 1:
            ccl.ok("Recv", at(into), c_size_t(5), BYTE, 0, comm, stream)
        own.wait()
    own.close()


def refused(rank: int, size: int, unique_id: str) -> None:
    own = Rank(rank, size, unique_id)
    ccl, comm, stream = own.ccl, own.comm, own.stream
    with own.array(ctypes.c_float, [1.0]) as one:
        arguments = at(one), at(one), c_size_t(1)
        for name, rest in (
            ("AllReduce", (99, SUM)),
            ("AllReduce", (FLOAT, 99)),
            ("Broadcast", (FLOAT, size)),
        ):
            assert ccl.call(name, *arguments, *rest, comm, stream) == INVALID_ARGUMENT
            assert "EMULATOR" in ccl.last_error()
        assert ccl.call("AllReduce", None, at(one), c_size_t(1), FLOAT, SUM, comm, stream) == 4
        assert ccl.call("AllReduce", *arguments, FLOAT, SUM, stream, stream) == INVALID_ARGUMENT
        # An error within a group is that of its end too, and nothing of the group runs.
        ccl.ok("GroupStart")
        ccl.ok("AllReduce", *arguments, FLOAT, SUM, comm, stream)
        assert ccl.call("Broadcast", *arguments, FLOAT, -1, comm, stream) == INVALID_ARGUMENT
        assert ccl.call("GroupEnd") == INVALID_ARGUMENT
        assert not own.busy()
        assert ccl.call("GroupEnd") == INVALID_USAGE
    assert all_reduce(own, [1.0]) == [size]
    assert b"EMULATOR" in ccl.library.ncclGetErrorString(4)
    own.close()
    assert ccl.call("CommDestroy", comm) == INVALID_ARGUMENT


def non_blocking(rank: int, size: int, unique_id: str) -> None:
    """All returns at once; nothing may be asked before it is done."""
    own = Rank(rank, size, unique_id, blocking=False)
    if rank == 0:
        assert own.async_error() == IN_PROGRESS
        with own.array(ctypes.c_float, [1.0]) as one:
            early = own.ccl.call(
                "AllReduce", at(one), at(one), c_size_t(1), FLOAT, SUM, own.comm, own.stream
            )
            assert early == INVALID_ARGUMENT
        say("started")
    assert own.settled() == 0
    assert all_reduce(own, [2.0]) == [2 * size]
    half = c_void_p()
    started = own.ccl.call("CommSplit", own.comm, rank % 2, rank, byref(half), None)
    assert started == IN_PROGRESS
    assert own.settled(half) == 0
    assert own.ccl.call("CommFinalize", half) == IN_PROGRESS
    assert own.settled(half) == 0
    own.ccl.ok("CommDestroy", half)
    assert own.ccl.call("CommFinalize", own.comm) == IN_PROGRESS
    assert own.settled() == 0
    own.ccl.ok("CommDestroy", own.comm)
    own.ccl.none_left()


def never_complete(rank: int, size: int, unique_id: str) -> None:
    """A rank that never comes: init without blocking is aborted."""
    own = Rank(rank, size, unique_id, blocking=False)
    assert own.async_error() == IN_PROGRESS
    own.ccl.ok("CommAbort", own.comm)
    assert own.ccl.call("CommGetAsyncError", own.comm, byref(c_int())) == INVALID_ARGUMENT
    own.ccl.none_left()


def splits(rank: int, size: int, unique_id: str) -> None:
    own = Rank(rank, size, unique_id)
    ccl = own.ccl
    for _ in range(3):
        half, last = c_void_p(), rank == size - 1
        color = -1 if last else rank % 2
        ccl.ok("CommSplit", own.comm, color, -rank, byref(half), None)
        assert bool(half.value) != last
        if last:
            continue
        members = [i for i in range(size - 1) if i % 2 == color]
        asked = c_int()
        ccl.ok("CommUserRank", half, byref(asked))
        assert asked.value == sorted(members, reverse=True).index(rank)
        assert all_reduce(own, [rank], half) == [sum(members)]
        ccl.ok("CommDestroy", half)
    # Two at once in a group, and operations on both.
    first, second = c_void_p(), c_void_p()
    ccl.ok("GroupStart")
    ccl.ok("CommSplit", own.comm, 0, rank, byref(first), None)
    ccl.ok("CommSplit", own.comm, rank % 2, rank, byref(second), None)
    ccl.ok("GroupEnd")
    with own.array(ctypes.c_float, [1.0, 1.0]) as ones:
        ccl.ok("GroupStart")
        for i, comm in enumerate((first, second)):
            one = at(ones, i)
            ccl.ok("AllReduce", one, one, c_size_t(1), FLOAT, SUM, comm, own.stream)
        ccl.ok("GroupEnd")
        own.wait()
        assert list(ones) == [size, len(range(rank % 2, size, 2))]
    for comm in (first, second):
        ccl.ok("CommDestroy", comm)
    own.close()


def registered(rank: int, size: int, unique_id: str) -> None:
    own = Rank(rank, size, unique_id)
    buffer, handle = c_void_p(), c_void_p()
    own.ccl.ok("MemAlloc", byref(buffer), c_size_t(100))
    own.ccl.ok("CommRegister", own.comm, buffer, c_size_t(100), byref(handle))
    own.ccl.ok("AllReduce", buffer, buffer, c_size_t(100), BYTE, SUM, own.comm, own.stream)
    own.wait()
    own.ccl.ok("CommDeregister", own.comm, handle)
    own.ccl.ok("MemFree", buffer)
    assert own.ccl.call("MemFree", buffer) == INVALID_ARGUMENT
    assert own.gpu.alive()["allocations"] == 0
    own.close()


def threads(size: int) -> None:
    """Ranks as threads of one process, and all ranks of one thread in groups."""
    ccl = Ccl()
    unique_id = ccl.unique_id().hex()
    errors = []

    def rank(number: int) -> None:
        try:
            own = Rank(number, size, unique_id)
            assert all_reduce(own, [number]) == [sum(range(size))]
            own.ccl.ok("CommDestroy", own.comm)
        except BaseException as error:
            errors.append(error)

    running = [threading.Thread(target=rank, args=(number,)) for number in range(size)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not errors, errors

    comms = (c_void_p * size)()
    ccl.ok("CommInitAll", comms, size, None)
    alone = Rank(0, 1, "")
    streams = [c_void_p(alone.gpu.stream()) for _ in range(size)]
    with alone.array(ctypes.c_float, [float(i) for i in range(size)]) as array:
        ccl.ok("GroupStart")
        for i in range(size):
            one, comm = at(array, i), c_void_p(comms[i])
            ccl.ok("AllReduce", one, one, c_size_t(1), FLOAT, SUM, comm, streams[i])
        ccl.ok("GroupEnd")
        for stream in streams:
            alone.gpu.ok("StreamSynchronize", stream)
        assert list(array) == [sum(range(size))] * size
    for comm in comms:
        ccl.ok("CommDestroy", c_void_p(comm))
    alone.close()


def cycles(count: int) -> None:
    """Unique ids and communicators leave nothing behind."""
    ccl = Ccl()
    before = 0
    for i in range(count):
        made, comm = UniqueId(), c_void_p()
        ccl.ok("GetUniqueId", byref(made))
        ccl.ok("CommInitRankConfig", byref(comm), 1, made, 0, byref(config(True)))
        ccl.ok("CommDestroy", comm)
        if i == 10:
            before = open_files()
    assert open_files() == before
    ccl.none_left()
    assert not [name for name in os.listdir("/dev/shm") if "emulator" in name]


def old() -> None:
    """RCCL 2.13 has fewer calls; what it has works."""
    library = ctypes.CDLL("librccl.so.1")
    version = c_int()
    assert library.ncclGetVersion(byref(version)) == 0
    assert version.value == 21304
    later = "CommInitRankConfig", "CommSplit", "CommFinalize", "GetLastError", "MemAlloc"
    for name in later:
        assert not hasattr(library, "nccl" + name)
    made, comm = UniqueId(), c_void_p()
    assert library.ncclGetUniqueId(byref(made)) == 0
    assert library.ncclCommInitRank(byref(comm), 1, made, 0) == 0
    assert library.ncclCommDestroy(comm) == 0

"""Communicators made of others: split, shrink, grow.

Each is a context: it yields who this process is in what is made, and what has the library make it;
within it that is started and waited for, while nobody else queues anything on the parent.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.gpu.calls import Call
from slurmmesh.gpu.engine import Engine, Make
from slurmmesh.gpu.failure import unsupported
from slurmmesh.gpu.identity import BYTES, CommunicatorId
from slurmmesh.gpu.membership import Membership
from slurmmesh.gpu.memory import DeviceMemory
from slurmmesh.gpu.peers import Peer, peers_by_rank
from slurmmesh.gpu.waiting import Deadline

_INT64 = 4  # enum sm_type
_NO_COLOR = -1
_PAIR = struct.Struct("=qq")

Plan = tuple[Membership, Make]


@contextlib.contextmanager
def split(parent: Engine, color: int | None, key: int | None) -> Iterator[Plan | None]:
    """See ``Communicator.split``."""
    me = parent.membership
    color = _NO_COLOR if color is None else color
    key = me.rank if key is None else key
    if type(color) is not int or not _NO_COLOR <= color < 1 << 31:
        raise UsageError(f"color={color!r}: it is a number from 0 on, or None")
    if type(key) is not int or not -(1 << 31) <= key < 1 << 31:
        raise UsageError(f"key={key!r}: it is a number of 32 bits")
    library = parent.library
    unsupported(library, "ccl_split")
    with parent.turn("split", Deadline(parent.timeout)), parent.ended_if_amid("split"):
        pairs = _gather(parent, color, key)
        members = [rank for rank, (its_color, _) in enumerate(pairs) if its_color == color]
        members.sort(key=lambda rank: (pairs[rank][1], rank))

        def make(pointer: Any) -> None:
            with parent.lifetime.using("split") as comm:
                library.call("sm_ccl_split", comm, color, key, pointer)

        if color == _NO_COLOR:
            nowhere = library.ffi.new("uint64_t *")
            parent.make_calls(
                parent.joining,
                Deadline(parent.timeout),
                lambda comm: library.call("sm_ccl_split", comm, color, key, nowhere),
            )
            yield None
        else:
            yield me.part(members, f"split {parent.collectives} {color}"), make


@contextlib.contextmanager
def shrink(parent: Engine, without: Iterable[int]) -> Iterator[Plan]:
    """See ``Communicator.shrink``."""
    me, lifetime = parent.membership, parent.lifetime
    ranks = list(without) if isinstance(without, Iterable) else []
    if not ranks or not all(type(rank) is int and 0 <= rank < me.size for rank in ranks):
        raise UsageError(f"without={without!r}: it is some of the ranks 0 to {me.size - 1}")
    left_out = sorted(set(ranks))
    if me.rank in left_out:
        raise UsageError(f"this is rank {me.rank}, which is to be left out: the others call it")
    unsupported(parent.library, "ccl_shrink")
    failed = lifetime.how == "revoked"
    if not failed:
        lifetime.check("shrink")
    numbers = parent.library.ffi.new("int[]", left_out)

    def make(pointer: Any) -> None:
        with lifetime.handle.using() as comm:
            parent.library.call(
                *("sm_ccl_shrink", comm, numbers, len(left_out), int(failed), pointer)
            )

    members = [rank for rank in range(me.size) if rank not in left_out]
    with parent.issuing, parent.ended_if_amid("shrink"):
        yield me.part(members, f"shrink {left_out}"), make
    if failed:
        lifetime.abort("it was revoked, and shrunk")


def growth_id(parent: Engine) -> CommunicatorId:
    """See ``Communicator.growth_id``."""
    library = parent.library
    unsupported(library, "ccl_grow_id")
    data = library.ffi.new("unsigned char[]", BYTES)
    with parent.turn("grow", Deadline(parent.timeout)), parent.lifetime.using("grow") as comm:
        library.call("sm_ccl_grow_id", comm, data)
    parent.growth = CommunicatorId(parent.membership.name, bytes(library.ffi.buffer(data)))
    return parent.growth


@contextlib.contextmanager
def grow(parent: Engine, id: CommunicatorId, size: int, peers: Iterable[Peer]) -> Iterator[Plan]:
    """See ``Communicator.grow``."""
    me, library = parent.membership, parent.library
    unsupported(library, "ccl_grow")
    if not isinstance(id, CommunicatorId):
        raise UsageError(f"a CommunicatorId is needed, not {id!r}")
    if type(size) is not int or size <= me.size:
        raise UsageError(f"size={size!r}: it is {me.size} already")
    data = id.data if id == parent.growth else library.ffi.NULL

    def make(pointer: Any) -> None:
        with parent.lifetime.using("grow") as comm:
            library.call("sm_ccl_grow", comm, size, data, -1, me.device, pointer)

    with parent.turn("grow", Deadline(parent.timeout)), parent.ended_if_amid("grow"):
        everybody = {**me.peers, **peers_by_rank(peers)}
        yield replace(me, name=id.name, key=id.key, size=size, peers=everybody), make


def _gather(parent: Engine, color: int, key: int) -> list[tuple[int, int]]:
    """Color and key of all ranks."""
    size = parent.membership.size
    with (
        DeviceMemory.reserve(_PAIR.size * (size + 1), device=parent.membership.device) as memory,
        parent.ended_if_amid("split"),  # only then can the memory be freed
    ):
        memory.write(_PAIR.pack(color, key))
        to = memory.address + _PAIR.size
        call = Call("split", "sm_ccl_all_gather", (memory.address, to, 2, _INT64), ())
        parent.run([call], None, Deadline(parent.timeout), True)
        return list(_PAIR.iter_unpack(memory.read(_PAIR.size * size, _PAIR.size)))

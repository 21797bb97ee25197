"""Communicators made of others: split, shrink, grow."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slurmmesh.errors import UsageError
from slurmmesh.gpu.calls import Call
from slurmmesh.gpu.failure import unsupported
from slurmmesh.gpu.identity import BYTES, CommunicatorId, key_of_part
from slurmmesh.gpu.memory import DeviceMemory
from slurmmesh.gpu.peers import Peer, peers_by_rank
from slurmmesh.gpu.waiting import Deadline

if TYPE_CHECKING:
    from slurmmesh.gpu.communicator import Communicator

_INT64 = 4  # enum sm_type
_NO_COLOR = -1
_PAIR = struct.Struct("=qq")


def split(parent: Communicator, color: int | None, key: int | None) -> Communicator | None:
    """See ``Communicator.split``."""
    color = _NO_COLOR if color is None else color
    key = parent.rank if key is None else key
    if type(color) is not int or not _NO_COLOR <= color < 1 << 31:
        raise UsageError(f"color={color!r}: it is a number from 0 on, or None")
    if type(key) is not int or not -(1 << 31) <= key < 1 << 31:
        raise UsageError(f"key={key!r}: it is a number of 32 bits")
    unsupported(parent._library, "ccl_split")
    with parent._turn("split", Deadline(parent.timeout)), _ended_if_amid(parent, "split"):
        pairs = _gather(parent, color, key)
        members = [rank for rank, (its_color, _) in enumerate(pairs) if its_color == color]
        members.sort(key=lambda rank: (pairs[rank][1], rank))

        def make(pointer: Any) -> None:
            with parent._using("split") as comm:
                parent._library.call("sm_ccl_split", comm, color, key, pointer)

        if color == _NO_COLOR:
            pointer = parent._library.ffi.new("uint64_t *")
            answer = parent._lane.start(lambda: make(pointer))
            deadline = Deadline(parent.timeout)
            parent._until(answer.there, parent._joining, deadline)
            answer.check()
            parent._until(lambda: parent._settled(parent._joining), parent._joining, deadline)
            return None
        return _part(parent, f"split {parent._collectives} {color}", members, make)


def shrink(parent: Communicator, without: Iterable[int]) -> Communicator:
    """See ``Communicator.shrink``."""
    ranks = list(without) if isinstance(without, Iterable) else []
    if not ranks or not all(type(rank) is int and 0 <= rank < parent.size for rank in ranks):
        raise UsageError(f"without={without!r}: it is some of the ranks 0 to {parent.size - 1}")
    left_out = sorted(set(ranks))
    if parent.rank in left_out:
        raise UsageError(f"this is rank {parent.rank}, which is to be left out: the others call it")
    unsupported(parent._library, "ccl_shrink")
    failed = parent._how == "revoked"
    if not failed:
        parent._check_usable("shrink")
    numbers = parent._library.ffi.new("int[]", left_out)

    def make(pointer: Any) -> None:
        with parent._handle.using() as comm:
            parent._library.call(
                *("sm_ccl_shrink", comm, numbers, len(left_out), int(failed), pointer)
            )

    members = [rank for rank in range(parent.size) if rank not in left_out]
    with parent._issuing, _ended_if_amid(parent, "shrink"):
        made = _part(parent, f"shrink {left_out}", members, make)
    if failed:
        parent.abort("it was revoked, and shrunk")
    return made


def growth_id(parent: Communicator) -> CommunicatorId:
    """See ``Communicator.growth_id``."""
    unsupported(parent._library, "ccl_grow_id")
    data = parent._library.ffi.new("unsigned char[]", BYTES)
    with parent._turn("grow", Deadline(parent.timeout)), parent._using("grow") as comm:
        parent._library.call("sm_ccl_grow_id", comm, data)
    made = CommunicatorId(parent.name, bytes(parent._library.ffi.buffer(data)))
    parent._growth = made
    return made


def grow(
    parent: Communicator, id: CommunicatorId, size: int, peers: Iterable[Peer]
) -> Communicator:
    """See ``Communicator.grow``."""
    unsupported(parent._library, "ccl_grow")
    if not isinstance(id, CommunicatorId):
        raise UsageError(f"a CommunicatorId is needed, not {id!r}")
    if type(size) is not int or size <= parent.size:
        raise UsageError(f"size={size!r}: it is {parent.size} already")
    data = id.data if id == parent._growth else parent._library.ffi.NULL

    def make(pointer: Any) -> None:
        with parent._using("grow") as comm:
            parent._library.call("sm_ccl_grow", comm, size, data, -1, parent.device, pointer)

    with parent._turn("grow", Deadline(parent.timeout)), _ended_if_amid(parent, "grow"):
        everybody = {**parent.peers, **peers_by_rank(peers)}
        return _made(parent, id.name, id.key, parent.rank, size, everybody, parent.dead, make)


def _part(
    parent: Communicator, how: str, members: list[int], make: Callable[[Any], None]
) -> Communicator:
    """A communicator of some ranks of another, in this order."""
    ranks = {member: rank for rank, member in enumerate(members)}
    peers = {
        rank: replace(parent.peers[member], rank=rank)
        for member, rank in ranks.items()
        if member in parent.peers
    }
    told = parent.dead

    def dead() -> list[int]:
        return [ranks[member] for member in told() if member in ranks] if told else []

    key = key_of_part(parent._witnesses.key, how)
    name = f"{parent.name}/{how.split()[0]}"
    return _made(parent, name, key, ranks[parent.rank], len(members), peers, dead, make)


def _made(
    parent: Communicator,
    name: str,
    key: bytes,
    rank: int,
    size: int,
    peers: dict[int, Peer],
    dead: Any,
    make: Callable[[Any], None],
) -> Communicator:
    made = type(parent).__new__(type(parent))
    made._set_up(
        *(name, key, rank, size, parent.device, peers),
        dead=dead,
        timeout=parent.timeout,
        on_failure=parent._on_failure,
        parent=parent,
    )
    with _ended_if_amid(made, "init"):
        made._start(make)
        made.wait()
    return made


@contextlib.contextmanager
def _ended_if_amid(communicator: Communicator, name: str) -> Iterator[None]:
    """Whatever is raised amid it, as by a signal handler, leaves ranks in different places and the
    library at work: it ends the communicator."""
    try:
        yield
    except UsageError:
        raise  # before anything was begun
    except BaseException as error:
        if not communicator._how:
            communicator.abort(f"{type(error).__name__} was raised amid {name}")
        raise


def _gather(parent: Communicator, color: int, key: int) -> list[tuple[int, int]]:
    """Color and key of all ranks."""
    with (
        DeviceMemory.reserve(_PAIR.size * (parent.size + 1), device=parent.device) as memory,
        _ended_if_amid(parent, "split"),  # only then can the memory be freed
    ):
        memory.write(_PAIR.pack(color, key))
        to = memory.address + _PAIR.size
        arguments = (memory.address, to, 2, _INT64)
        parent._run([Call("split", "sm_ccl_all_gather", arguments, ())], None, None, True)
        return list(_PAIR.iter_unpack(memory.read(_PAIR.size * parent.size, _PAIR.size)))

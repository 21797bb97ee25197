"""What the tests run in which ranks die, or do what others do not: each is a rank."""

from __future__ import annotations

import os
import signal
import socket
import threading
from typing import Any

import pytest
import torch

from slurmmesh.errors import CollectiveError, LinkClosed
from slurmmesh.gpu import (
    Communicator,
    CommunicatorId,
    DeviceMemory,
    ExportedMemory,
    live_communicators,
    this_peer,
)
from slurmmesh.gpu.library import Library
from tests.gpu.alive import alive
from tests.gpu.meeting import Rank
from tests.gpu.programs_failures import told

UNIT = 2 << 20


def die_at(function: str, after: bool) -> None:
    """This process is killed when it calls the bridge, before the library has it or after."""
    real = Library.call

    def call(self: Library, name: str, *arguments: Any) -> None:
        if name != function or after:
            real(self, name, *arguments)
        if name == function:
            os.kill(os.getpid(), signal.SIGKILL)

    Library.call = call  # type: ignore[method-assign]


def phases(
    folder: str, rank: int, size: int, phase: str, function: str, after: bool
) -> dict[str, Any] | None:
    """The last rank dies in a phase; what the others say, which none of them waits for.

    What the library had taken from the dead may be all that the others' first call needs, so
    that each calls once more.
    """
    own = Rank(folder, rank, size)
    if phase == "init" and rank == size - 1:
        die_at(function, after)
    failed = None
    tensor = torch.ones(4)
    try:
        comm = own.communicator()
        comm.all_reduce(tensor)
        own.meet("in")
        if rank == size - 1:
            die_at(function, after)
        made: Communicator | None = None
        if phase == "operation":
            comm.all_reduce(tensor)
            comm.all_reduce(tensor)
        elif phase == "split":
            made = comm.split(0)
        elif phase == "shrink" and rank:
            made = comm.shrink([0])
        if made is not None:
            made.all_reduce(tensor)
        comm.finalize()
    except CollectiveError as error:
        failed = told(error)
    own.meet_some("end", None, range(size - 1))
    assert live_communicators() == ()
    return failed


def disagree(folder: str, rank: int, size: int) -> dict[str, Any]:
    """Each calls something else."""
    own = Rank(folder, rank, size)
    comm = own.communicator(timeout=2)
    with pytest.raises(CollectiveError) as raised:
        comm.broadcast(torch.ones(4)) if rank == 1 else comm.all_reduce(torch.ones(4))
    own.meet("end")
    return told(raised.value)


def twice(folder: str, rank: int, size: int) -> dict[str, Any]:
    """The last one takes a rank that is there already: nobody waits for ever."""
    own = Rank(folder, rank, size)
    mine = min(rank, size - 2)
    id, _ = own.meet("id", (CommunicatorId.new("twice"), this_peer(mine)))[0]
    with pytest.raises(CollectiveError) as raised:
        Communicator(id, mine, size, timeout=1)
    own.meet("end")
    return told(raised.value)


def threads(folder: str, rank: int, size: int) -> None:
    """Two communicators, each used by a thread of its own."""
    own = Rank(folder, rank, size)
    comms = [own.communicator(name) for name in ("first", "second")]
    failed: list[BaseException] = []

    def use(comm: Communicator, color: int) -> None:
        try:
            tensor = torch.full((100,), float(rank))
            for _ in range(20):
                comm.all_reduce(tensor, "max")
                assert tensor.tolist() == [size - 1] * 100
            part = comm.split(rank % 2 + color)
            assert part is not None
            part.all_reduce(tensor)
            assert tensor.tolist() == [(size - 1) * part.size] * 100
            part.finalize()
            comm.finalize()
        except BaseException as error:
            failed.append(error)

    running = [threading.Thread(target=use, args=each) for each in zip(comms, (0, 5), strict=True)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert failed == []


# ------------------------------------------------------------------ sharing


def dying_exporter(when: str, descriptor: int) -> None:
    """Killed between two batches of descriptors, or when all are sent."""
    with socket.socket(fileno=os.dup(descriptor)) as link:
        memory = DeviceMemory.reserve(UNIT, capacity=300 * UNIT)
        for number in range(2, 255 if when == "amid" else 3):
            memory.grow(number * UNIT)
        memory.write(b"left behind", UNIT)
        if when == "amid":
            real = socket.send_fds

            def send_fds(connection: socket.socket, data: Any, fds: list[int]) -> int:
                if len(fds) == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                return real(connection, data, fds)

            socket.send_fds = send_fds
        with memory.export() as exported:
            exported.send(link)
        os.kill(os.getpid(), signal.SIGKILL)


def heir(when: str, descriptor: int) -> None:
    """Imports it."""
    with socket.socket(fileno=os.dup(descriptor)) as link:
        DeviceMemory.reserve(UNIT).free()
        before = alive()
        if when == "amid":
            with pytest.raises(LinkClosed):
                ExportedMemory.receive(link)
        else:
            with ExportedMemory.receive(link) as exported, DeviceMemory.import_(exported) as same:
                assert link.recv(1) == b""  # it is dead
                assert same.read(11, UNIT) == b"left behind"
                same.write(b"used on", UNIT)
        assert alive() == before


def dying_importer(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as link:
        die_at("sm_memory_map", True)
        DeviceMemory.import_(ExportedMemory.receive(link))


def bereaved_exporter(descriptor: int) -> None:
    """Its memory is its own still when whoever imported it is killed."""
    with socket.socket(fileno=os.dup(descriptor)) as link:
        before = alive()
        with DeviceMemory.reserve(UNIT) as memory:
            memory.write(b"mine")
            with memory.export() as exported:
                exported.send(link)
            assert link.recv(1) == b""
            assert memory.read(4) == b"mine"
        assert alive() == before

"""The abortable process group, on real Gloo between processes.

Its timeouts are minutes: a test that ends shows that nobody waited for one. Each member is a
forked process, for Gloo keeps descriptors until its process ends.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from datetime import timedelta

import pytest
import torch
from torch.distributed import AllreduceOptions, TCPStore

from slurmmesh.recovery.gloo import AbortableGloo, PeerDead
from slurmmesh.recovery.membership import Membership, member_name

MINUTES = timedelta(minutes=10)
ADDRESS = "127.0.0.1"
Member = Callable[["Seat"], None]


class Seat:
    """One member's place: its rank, its group, and a socket to the test for turns."""

    def __init__(self, rank: int, port: int, turns: socket.socket) -> None:
        self.rank = rank
        self.port = port
        self.turns = turns
        self.membership = Membership()
        self.membership.set_members([member_name(0, 0), member_name(1, 0)])
        self.group = AbortableGloo(ADDRESS, self.membership, MINUTES, MINUTES)

    def configure(self, prefix: str = "a", port: int | None = None) -> None:
        where = f"{ADDRESS}:{port or self.port}/{prefix}"
        self.group.configure(where, "r", self.rank, 2, 1, 0, 1, [0, 1])

    def allreduce(self) -> list[float]:
        tensor = torch.full((3,), float(self.rank + 1))
        self.group.allreduce([tensor], AllreduceOptions()).wait()
        return tensor.tolist()

    def meanwhile(self, act: Callable[[], object]) -> None:
        """Do it from another thread, in a moment in which this one waits in native code."""
        threading.Timer(0.3, act).start()

    def ready(self) -> None:
        """Tell the test that this member has come so far, and wait for its word."""
        self.turns.sendall(b"r")
        assert self.turns.recv(1) == b"g"


def run(*members: Member, meetings: int = 1, kill: int | None = None) -> None:
    """Run members as processes; fails if one does.

    Args:
        meetings: how often each calls ``ready``.
        kill: member to kill when all are ready for the first time.
    """
    turns = [socket.socketpair() for _ in members]
    pids: list[int] = []
    port_pipe = os.pipe()
    try:
        for rank, member in enumerate(members):
            pids.append(os.fork())
            if pids[-1] == 0:
                _be(member, rank, turns[rank][1], port_pipe)
        alive = [rank for rank in range(len(members)) if rank != kill]
        for meeting in range(meetings):
            for rank in alive if meeting else range(len(members)):
                turns[rank][0].settimeout(60)
                assert turns[rank][0].recv(1) == b"r"
            if kill is not None and meeting == 0:
                os.kill(pids[kill], signal.SIGKILL)
            for rank in alive:
                turns[rank][0].sendall(b"g")
        deadline = time.monotonic() + 60
        waiting = dict(enumerate(pids))
        while waiting and time.monotonic() < deadline:
            for rank, pid in list(waiting.items()):
                done, status = os.waitpid(pid, os.WNOHANG)
                if done:
                    del waiting[rank]
                    assert rank == kill or status == 0, f"member {rank} failed"
            time.sleep(0.01)
        assert not waiting, f"members {list(waiting)} still wait"
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for pair in turns:
            for each in pair:
                each.close()
        for fd in port_pipe:
            os.close(fd)


def _be(member: Member, rank: int, turns: socket.socket, port_pipe: tuple[int, int]) -> None:
    code = 1
    try:
        store = None
        if rank == 0:
            store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
            os.write(port_pipe[1], b"%6d" % store.port * 8)
        port = int(os.read(port_pipe[0], 6))
        member(Seat(rank, port, turns))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def join_in(seat: Seat) -> None:
    seat.configure()
    seat.ready()
    time.sleep(60)


def test_a_collective_that_waits_for_a_dead_peer_is_freed_from_outside():
    def survivor(seat: Seat) -> None:
        seat.configure()
        seat.ready()
        # The other one lives and is connected, but never comes: only the news can help.
        seat.meanwhile(lambda: seat.group.peer_died(1, 0))
        with pytest.raises(RuntimeError):
            seat.allreduce()
        seat.ready()

    def silent(seat: Seat) -> None:
        seat.configure()
        seat.ready()
        seat.ready()

    run(survivor, silent, meetings=2)


def test_a_killed_peer_is_noticed_by_who_is_connected_to_it():
    def survivor(seat: Seat) -> None:
        seat.configure()
        seat.ready()
        with pytest.raises(RuntimeError):
            seat.allreduce()

    run(survivor, join_in, kill=1)


def test_an_abort_frees_the_peer_that_waits():
    """What makes one survivor's failure everybody's at once."""

    def aborts(seat: Seat) -> None:
        seat.configure()
        seat.ready()
        seat.meanwhile(seat.group.abort)
        seat.ready()

    def waits(seat: Seat) -> None:
        seat.configure()
        seat.ready()
        with pytest.raises(RuntimeError):
            seat.allreduce()
        seat.ready()

    run(aborts, waits, meetings=2)


def test_after_an_abort_the_next_quorum_works():
    def member(seat: Seat) -> None:
        for prefix in ("a", "b", "c"):
            seat.configure(prefix)
            assert seat.allreduce() == [3.0] * 3
            if prefix != "c":
                seat.group.abort()
        seat.ready()  # nobody leaves while the other is in its last allreduce

    run(member, member)


def test_connecting_to_a_member_that_dies_meanwhile_ends_at_once():
    def alone(seat: Seat) -> None:
        seat.meanwhile(lambda: seat.group.peer_died(1, 0))
        with pytest.raises((PeerDead, RuntimeError)):
            seat.configure()

    run(alone, meetings=0)


def test_a_store_that_nobody_hosts_is_given_up_with_its_host():
    def alone(seat: Seat) -> None:
        with socket.create_server((ADDRESS, 0)) as gone:
            port = gone.getsockname()[1]
        seat.meanwhile(lambda: seat.group.peer_died(1, 0))
        with pytest.raises(PeerDead):
            seat.configure(port=port)

    run(alone, meetings=0)


def test_a_member_known_to_be_dead_is_not_connected_to():
    def alone(seat: Seat) -> None:
        seat.group.peer_died(1, 0)
        with pytest.raises(PeerDead, match="replica 1 died"):
            seat.configure()
        with pytest.raises(RuntimeError, match="was aborted"):
            seat.allreduce()

    run(alone, meetings=0)


def test_a_death_outside_of_the_quorum_disturbs_nobody():
    def member(seat: Seat) -> None:
        seat.configure()
        assert not seat.group.peer_died(5, 0)
        assert not seat.group.peer_died(1, 7)
        seat.ready()
        assert seat.allreduce() == [3.0] * 3
        seat.group.abort()

    run(member, member)


ALONE = """
from datetime import timedelta
from torch.distributed import TCPStore
from slurmmesh.recovery.gloo import AbortableGloo
from slurmmesh.recovery.membership import Membership, member_name

membership = Membership()
membership.set_members([member_name(0, 0), member_name(1, 0)])
store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
group = AbortableGloo("127.0.0.1", membership, timedelta(hours=1), timedelta(seconds=1))
try:
    group.configure(f"127.0.0.1:{store.port}/x", "replica", 0, 2)
except RuntimeError as error:
    print("gave up:", type(error).__name__, flush=True)
"""


@pytest.mark.slow
def test_a_member_that_never_comes_does_not_hold_the_setup_for_a_collectives_time():
    done = subprocess.run(
        [sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120
    )
    assert "gave up" in done.stdout, done.stderr

"""Who is to blame: what processes tell of themselves, and what is made of it."""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.gpu import peers, progress
from slurmmesh.gpu.blame import Verdict, Waiting, Witnesses
from slurmmesh.gpu.peers import Peer
from slurmmesh.gpu.progress import Board, Progress

KEY = bytes(range(16))
PID = os.getpid()


def peer_of(pid: int, rank: int, board: int) -> Peer:
    found = peers._stat(pid)
    assert found
    return Peer(rank, socket.gethostname(), pid, found[1], peers._machine(), board)


@pytest.fixture
def board() -> Iterator[Board]:
    made = Board()
    try:
        yield made
    finally:
        made.page.close()
        os.close(made.fd)


@given(
    st.integers(0, (1 << 48) - 1),
    st.sampled_from(progress.OPERATIONS),
    st.booleans(),
    st.booleans(),
)
def test_what_a_rank_tells_is_read(sequence: int, name: str, ended: bool, left: bool) -> None:
    board = Board()
    try:
        slot = board.slot(KEY, 3)
        slot.begin(sequence, name)
        if ended:
            slot.end()
        if left:
            slot.leave()
        found = progress.read(PID, board.fd, KEY, 3)
        assert found == Progress(sequence, name, not ended, left)
        assert progress.read(PID, board.fd, KEY, 2) is None
        assert progress.read(PID, board.fd, bytes(16), 3) is None
    finally:
        board.page.close()
        os.close(board.fd)


def test_a_board_that_is_full_takes_no_more_until_one_leaves(board: Board) -> None:
    slots = [board.slot(KEY, rank) for rank in range(128)]
    board.slot(KEY, 128).begin(1, "reduce")
    assert progress.read(PID, board.fd, KEY, 128) is None
    for slot in slots:
        slot.begin(1, "reduce")
    slots[5].leave()
    slots[5].leave()
    board.slot(KEY, 128).begin(2, "reduce")
    slots[5].begin(9, "init")  # writes nowhere any more
    assert progress.read(PID, board.fd, KEY, 128) == Progress(2, "reduce", True, False)
    assert progress.read(PID, board.fd, KEY, 5) is None


def test_what_is_no_board_is_not_read() -> None:
    with open(os.devnull) as other:
        assert progress.read(PID, other.fileno(), KEY, 0) is None
    assert progress.read(PID, -1, KEY, 0) is None
    assert progress.read(1 << 22, 0, KEY, 0) is None


def test_a_pipe_by_the_name_of_a_board_holds_nobody_up(tmp_path: Path) -> None:
    """Nor does what the link was before say what is opened."""
    os.mkfifo(tmp_path / "pipe")
    end = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    try:
        assert progress.read(PID, end, KEY, 0) is None
    finally:
        os.close(end)


def test_processes_live_stop_and_die(wait_until: Callable[[Callable[[], object]], None]) -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        peer = peer_of(child.pid, 0, -1)
        assert (peer.here, peer.state) == (True, "alive")
        assert dataclasses.replace(peer, started=peer.started - 1).state == "dead"
        assert not dataclasses.replace(peer, machine="another").here
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: peer.state == "stopped")
    finally:
        child.kill()
        wait_until(lambda: peer.state == "dead")  # a zombie
        child.communicate()
    assert peer.state == "dead"


ARRIVED = Waiting("all_reduce", 18, (1, 2))


def judged(
    board: Board, waiting: Waiting, *what: tuple[int, str, str], dead: object = ()
) -> Verdict:
    """Ranks 1, 2, ... are this process, at (sequence, operation, then)."""
    told: dict[int, Peer] = {}
    for rank, (sequence, name, then) in enumerate(what, 1):
        told[rank] = peer_of(PID, rank, board.fd)
        slot = board.slot(KEY, rank)
        slot.begin(sequence, name)
        if then:
            getattr(slot, then)()

    def say() -> tuple[int, ...]:
        if isinstance(dead, Exception):
            raise dead
        return dead  # type: ignore[return-value]

    return Witnesses(KEY, told, say).judge(waiting)


@pytest.mark.parametrize(
    ("waiting", "what", "dead", "late", "left", "said"),
    [
        (ARRIVED, [(18, "all_reduce", ""), (19, "broadcast", "")], (), (), (), ""),
        (ARRIVED, [(17, "reduce", ""), (18, "all_reduce", "")], (), (1,), (), "is at operation 17"),
        (ARRIVED, [(17, "reduce", "end")], (), (1,), (), "has come to operation 17, reduce"),
        (ARRIVED, [(17, "reduce", ""), (16, "reduce", "")], (2,), (1,), (), "rank 2 .*is dead: so"),
        (ARRIVED, [(18, "reduce", "")], (), (1,), (), "has called reduce as operation 18"),
        (ARRIVED, [(18, "all_reduce", "leave")], (), (), (1,), "has left the communicator"),
        (ARRIVED, [(17, "reduce", "leave")], (), (), (1,), "after operation 17"),
        (ARRIVED, [], (2, 7), (), (), "^rank 2 is dead"),
        (Waiting("recv", 3, (1,), True), [(9, "send", "end")], (), (1,), (), "is in no operation"),
        (Waiting("recv", 3, (1,), True), [(0, "init", "")], (), (1,), (), "is in init"),
    ],
)
def test_verdicts(
    board: Board,
    waiting: Waiting,
    what: list[tuple[int, str, str]],
    dead: tuple[int, ...],
    late: tuple[int, ...],
    left: tuple[int, ...],
    said: str,
) -> None:

    found = judged(board, waiting, *what, dead=dead)
    assert (found.late, found.left) == (late, left)
    assert found.dead == tuple(rank for rank in dead if rank in waiting.ranks)
    assert re.search(said, "\n".join(found.words), re.MULTILINE)
    assert found.to_blame == (found.dead or late or left)


def test_supervision_that_fails_is_told_and_harms_nothing(board: Board) -> None:
    found = judged(board, ARRIVED, (17, "reduce", ""), dead=KeyError("gone"))
    assert found.late == (1,)
    assert found.words[-1] == "dead() failed: KeyError: 'gone'"


def test_who_has_not_begun_to_join_is_late(board: Board) -> None:
    told = {rank: peer_of(PID, rank, board.fd) for rank in (1, 2)}
    board.slot(KEY, 1).begin(0, "init")
    found = Witnesses(KEY, told, None).judge(Waiting("init", 0, (1, 2, 3)))
    assert (found.dead, found.late, found.left) == ((), (2,), ())
    assert found.words[0].endswith("is alive, but has not begun to join")

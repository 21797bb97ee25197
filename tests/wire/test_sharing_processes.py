"""Payloads in shared memory between processes: whole, in place, and given back whoever dies."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

from slurmmesh.wire import Frame, Kind, Link, Reactor, same_user, shm
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import SHARED
from slurmmesh.wire.sharing import THRESHOLD
from slurmmesh.wire.shm import lease_of

MIB = 1 << 20


def open_segments() -> int:
    """Descriptors of segments in this process."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            count += "memfd:slurmmesh" in os.readlink(f"/proc/self/fd/{fd}")
    return count


class Peer:
    """A forked process at the other end of a link.

    It keeps the arrays it gets, answers each with its sum, and on a RESULT frame drops them all.
    """

    def __init__(self, extra: Callable[[list[np.ndarray]], object] = lambda kept: None) -> None:
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if self.pid == 0:
            ours.close()
            with contextlib.suppress(BaseException):
                self._serve(theirs, extra)
            os._exit(0)
        theirs.close()
        self.sock = ours

    def _serve(self, sock: socket.socket, extra: Callable[[list[np.ndarray]], object]) -> None:
        kept: list[np.ndarray] = []
        reactor = Reactor()

        def on_frame(link: Link, frame: Frame) -> None:
            if frame.kind is Kind.RESULT:
                kept.clear()
            elif frame.kind is Kind.PING:
                extra(kept)
            else:
                kept.extend(np.frombuffer(buffer, np.uint8) for buffer in frame.buffers)
            total = sum(int(each[0]) + int(each[-1]) for each in kept if len(each))
            link.post(Frame(Kind.RESULT, str(total).encode(), frame.buffers, call=frame.call))

        link = Link(
            reactor,
            sock,
            authenticate=same_user,
            on_frame=on_frame,
            on_close=lambda *_: reactor.stop(),
        )
        reactor.call_soon(link.start)
        reactor.run()

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)


class Near:
    """Our end of a link, its loop in a thread."""

    def __init__(self, sock: socket.socket) -> None:
        self.frames: list[Frame] = []
        self._came = threading.Condition()
        self.closed = threading.Event()
        self.reactor = Reactor()
        self.link = Link(
            self.reactor,
            sock,
            authenticate=same_user,
            on_frame=self._on_frame,
            on_close=lambda *_: self.closed.set(),
        )
        self.reactor.call_soon(self.link.start)
        self._thread = threading.Thread(target=self.reactor.run)
        self._thread.start()

    def _on_frame(self, _link: Link, frame: Frame) -> None:
        with self._came:
            self.frames.append(frame)
            self._came.notify()

    def ask(self, kind: Kind, *buffers: object, body: bytes = b"") -> Frame:
        """Send, and wait for the answer."""
        self.link.send(Frame(kind, body, [memoryview(each) for each in buffers]))
        with self._came:
            assert self._came.wait_for(lambda: self.frames, timeout=60)
            return self.frames.pop()

    def end(self) -> None:
        self.link.close()
        assert self.closed.wait(10)
        self.reactor.stop()
        self._thread.join(10)
        self.frames.clear()


@pytest.fixture
def talk() -> Iterator[Callable[..., tuple[Peer, Near]]]:
    """``talk(extra)``: a peer, and our end of the link to it."""
    made: list[Peer | Near] = []

    def begin(*extra: Callable[[list[np.ndarray]], object]) -> tuple[Peer, Near]:
        peer = Peer(*extra)
        near = Near(peer.sock)
        made.extend((near, peer))
        return peer, near

    yield begin
    for each in made:
        each.end()
    gc.collect()
    assert (shm.pool.used_bytes, shm.pool.idle_bytes, open_segments()) == (0, 0, 0)


@pytest.mark.parametrize("size", [0, 1, THRESHOLD - 1, THRESHOLD, MIB + 1, 5 * MIB])
def test_payloads_arrive_and_come_back_whole(talk, size):
    _, near = talk()
    data = os.urandom(size)
    for _ in range(3):
        answer = near.ask(Kind.CALL, data, b"ab", body=b"x")
        assert [bytes(buffer) for buffer in answer.buffers] == [data, b"ab"]
        assert (lease_of(answer.buffers[0]) is not None) == (size + 2 >= THRESHOLD)
        near.ask(Kind.RESULT)


def test_memory_comes_back_without_further_traffic(talk, wait_until):
    _, near = talk()
    for _ in range(5):
        near.ask(Kind.CALL, bytes(4 * MIB))
        near.ask(Kind.RESULT)
    wait_until(lambda: shm.pool.settle() or shm.pool.used_bytes == 0)
    assert shm.pool.idle_bytes <= 8 * MIB


def test_a_peer_that_holds_much_makes_payloads_take_the_socket(talk, monkeypatch):
    _, near = talk()
    monkeypatch.setattr(shm.pool, "_limit", 6 * MIB)
    totals = [near.ask(Kind.CALL, b"\1" * (4 * MIB)).body for _ in range(4)]
    assert totals == [b"2", b"4", b"6", b"8"]
    assert shm.pool.used_bytes <= 6 * MIB


def test_arrays_outlive_who_sent_them(talk):
    peer, near = talk()
    answer = near.ask(Kind.CALL, b"\5" * MIB)
    back = answer.buffers[0]
    near.ask(Kind.CALL, b"\6" * MIB)
    peer.end()
    assert near.closed.wait(10)
    assert bytes(back) == b"\5" * MIB
    back[0] = 1


def test_what_a_dead_peer_held_is_given_up(talk, wait_until):
    peer, near = talk()
    for _ in range(3):
        near.ask(Kind.CALL, bytes(MIB))
    near.frames.clear()
    assert shm.pool.used_bytes == 3 * MIB
    peer.end()
    assert near.closed.wait(10)
    wait_until(lambda: shm.pool.settle() or shm.pool.used_bytes == 0)


def test_a_child_that_the_receiver_forked_keeps_what_it_sees(talk):
    """Forked while it held arrays, the peer drops them; the child looks again after that."""
    read, write = os.pipe()
    go_read, go_write = os.pipe()

    def fork(kept: list[np.ndarray]) -> None:
        if os.fork() == 0:
            os.read(go_read, 1)
            os.write(write, bytes([kept[0][0], kept[0][-1]]))
            os._exit(0)

    _, near = talk(fork)
    near.ask(Kind.CALL, b"\3" * MIB)
    near.ask(Kind.PING)
    near.ask(Kind.RESULT)
    for _ in range(3):
        near.ask(Kind.CALL, b"\4" * MIB)
    os.write(go_write, b"x")
    assert os.read(read, 2) == b"\3\3"
    for fd in (read, write, go_read, go_write):
        os.close(fd)


def test_what_the_sender_changes_after_the_send_does_not_change_what_was_sent(talk):
    _, near = talk()
    data = bytearray(b"\1" * MIB)
    near.link.send(Frame(Kind.CALL, b"", [memoryview(data)]))
    data[:] = bytes(MIB)
    assert near.ask(Kind.PING).body == b"2"


def test_values_come_back_as_they_were_and_writable(talk):
    _, near = talk()
    base = torch.arange(1 << 18)
    body, buffers = dumps({"a": base[: 1 << 17], "b": base[1 << 16 :], "c": [b"z" * MIB]})
    answer = near.ask(Kind.CALL, *buffers)
    back = loads(body, answer.buffers)
    del answer
    near.frames.clear()
    assert torch.equal(back["b"], base[1 << 16 :])
    assert back["c"] == [b"z" * MIB]
    back["a"][1 << 16] = -1
    assert back["b"][0] == -1


@pytest.mark.slow
def test_a_payload_of_more_than_4_gib(talk):
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if free < 12 << 30:
        pytest.skip("needs 12 GiB of free memory")
    _, near = talk()
    data = np.zeros((4 << 30) + 5, np.uint8)
    data[0], data[-1] = 1, 2
    assert near.ask(Kind.CALL, data).body == b"3"


def test_a_link_with_another_machine_has_no_shared_memory():
    server = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(server.getsockname())
    accepted, _ = server.accept()
    near = Near(client)  # same_user means nothing here: nothing is read before the test ends
    near.link.peer = "peer"
    parts = Frame(Kind.RELEASE, b"", flags=SHARED).parts()
    accepted.sendall(b"".join(bytes(part) for part in parts))
    assert near.closed.wait(10)
    near.end()
    for each in (server, accepted):
        each.close()

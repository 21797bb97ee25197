"""Links over real sockets: order, large payloads, threads, cuts at any byte, strangers."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import threading
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmmesh.errors import IdentityError, LinkClosed
from slurmmesh.wire import Frame, FrameDecoder, Kind, Link, Reactor, same_user, sharing, wrap
from slurmmesh.wire.identity import JobAuthority, client_context, peer_name, server_context
from slurmmesh.wire.quick import QuickLink


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    loop = Reactor()
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield loop
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()


class Side:
    """One side of a link, with what it got in queues."""

    def __init__(
        self, reactor: Reactor, sock: socket.socket, authenticate=same_user, make=Link
    ) -> None:
        self.opened: queue.Queue[str] = queue.Queue()
        self.frames: queue.Queue[Frame] = queue.Queue()
        self.closed: queue.Queue[str] = queue.Queue()
        self.link = make(
            reactor,
            sock,
            authenticate=authenticate,
            on_open=lambda link: self.opened.put(link.peer),
            on_frame=lambda _link, frame: self.frames.put(frame),
            on_close=lambda _link, reason: self.closed.put(reason),
        )
        reactor.call_soon(self.link.start)


@pytest.fixture(params=[Link, QuickLink])
def pair(reactor: Reactor, request: pytest.FixtureRequest) -> Iterator[tuple[Side, Side]]:
    a, b = (Side(reactor, sock, make=request.param) for sock in socket.socketpair())
    yield a, b
    for side in (a, b):
        side.link.close()
        side.closed.get(timeout=10)


def test_frames_of_many_threads_arrive_whole_and_each_thread_in_order(pair):
    a, b = pair
    a.opened.get(timeout=10)
    per_thread, threads = 300, 4

    def send(number: int) -> None:
        for index in range(per_thread):
            a.link.send(Frame(Kind.CALL, b"x" * (index * 37 % 5000), call=index, mesh=number))

    workers = [threading.Thread(target=send, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    seen: dict[int, list[int]] = {}
    for _ in range(per_thread * threads):
        frame = b.frames.get(timeout=10)
        assert len(frame.body) == frame.call * 37 % 5000
        seen.setdefault(frame.mesh, []).append(frame.call)
    for worker in workers:
        worker.join()
    assert seen == {number: list(range(per_thread)) for number in range(threads)}


def test_a_payload_larger_than_every_buffer_arrives(pair):
    a, b = pair
    payload = bytes(range(256)) * (1 << 16)
    a.link.send(Frame(Kind.RESULT, b"body", [payload, b"", b"end"]))
    frame = b.frames.get(timeout=30)
    assert [bytes(buffer) for buffer in frame.buffers] == [payload, b"", b"end"]


def test_a_slow_reader_holds_the_sender_back(reactor):
    ours, theirs = socket.socketpair()
    side = Side(reactor, ours)
    side.opened.get(timeout=10)
    sent = threading.Semaphore(0)

    def flood() -> None:
        with contextlib.suppress(LinkClosed):
            while True:
                side.link.send(Frame(Kind.CALL, bytes(32 << 20)))
                sent.release()

    sender = threading.Thread(target=flood)
    sender.start()
    assert sent.acquire(timeout=10)
    assert side.link._out.end - side.link._out.sent <= (64 + 32) << 20
    theirs.close()
    assert side.closed.get(timeout=10)
    sender.join(10)
    assert not sender.is_alive()


def test_a_stream_cut_at_any_byte_closes_the_link_and_gives_only_whole_frames(reactor):
    stream = b"".join(
        bytes(part) for index in range(2) for part in Frame(Kind.CALL, b"abc", call=index).parts()
    )
    for cut in range(len(stream) + 1):
        ours, theirs = socket.socketpair()
        side = Side(reactor, ours)
        theirs.sendall(stream[:cut])
        theirs.close()
        reason = side.closed.get(timeout=10)
        whole, rest = divmod(cut, len(stream) // 2)
        assert side.frames.qsize() == whole
        assert reason == ("cut in the middle of a frame" if rest else "closed by the peer")


def test_sending_on_a_closed_link_is_an_error(reactor):
    side = Side(reactor, socket.socketpair()[0])
    side.closed.get(timeout=10)
    with pytest.raises(LinkClosed):
        side.link.send(Frame(Kind.PING))


def test_a_peer_of_another_user_is_refused(reactor):
    def other_user(_sock: socket.socket) -> str:
        raise IdentityError("refused: another user")

    ours, theirs = socket.socketpair()
    theirs.sendall(b"".join(bytes(part) for part in Frame(Kind.CALL, b"evil").parts()))
    side = Side(reactor, ours, authenticate=other_user)
    assert side.closed.get(timeout=10) == "refused: another user"
    assert side.frames.empty()
    theirs.close()


def test_members_of_one_job_talk_over_tls(reactor):
    authority = JobAuthority("job-1")
    contexts = (
        server_context(authority.issue("controller")),
        client_context(authority.issue("host-3")),
    )
    server, client = (
        Side(reactor, wrap(sock, context, server_side=side == 0), authenticate=peer_name)
        for side, (sock, context) in enumerate(zip(socket.socketpair(), contexts, strict=True))
    )
    payload = bytes(3 << 20)
    client.link.send(Frame(Kind.CALL, b"hello", [payload]))
    frame = server.frames.get(timeout=20)
    assert (server.link.peer, client.link.peer) == ("host-3", "controller")
    assert (bytes(frame.body), len(frame.buffers[0])) == (b"hello", len(payload))
    server.link.send(Frame(Kind.RESULT, b"answer"))
    assert bytes(client.frames.get(timeout=10).body) == b"answer"
    client.link.close()
    assert server.closed.get(timeout=10)
    assert client.closed.get(timeout=10)


def test_a_callback_that_raises_costs_no_frame(reactor):
    reported = queue.Queue()
    reactor._on_error = lambda: reported.put(True)
    got: queue.Queue[int] = queue.Queue()

    def on_frame(_link: Link, frame: Frame) -> None:
        got.put(frame.call)
        raise ValueError("in a callback")

    ours, theirs = socket.socketpair()
    link = Link(reactor, ours, authenticate=same_user, on_frame=on_frame)
    reactor.call_soon(link.start)
    with theirs:
        frames = [Frame(Kind.CALL, b"x" * 100, call=call) for call in range(50)]
        theirs.sendall(b"".join(bytes(part) for frame in frames for part in frame.parts()))
        assert [got.get(timeout=10) for _ in frames] == list(range(50))
    assert reported.get(timeout=10)
    link.close()


class Interrupt(BaseException):
    pass


@pytest.mark.parametrize("raises", [True, False])
def test_a_signal_handler_at_any_moment_of_a_send_leaves_the_stream_whole(pair, raises):
    a, b = pair
    a.opened.get(timeout=10)
    sent_by_handler = 0

    def handler(_signum: int, frame: types.FrameType) -> None:
        nonlocal sent_by_handler
        if Path(frame.f_code.co_filename).name not in ("links.py", "outgoing.py", "quick.py"):
            return
        if raises:
            raise Interrupt
        sent_by_handler += 1
        a.link.send(Frame(Kind.EVENT, b"h"))

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.0003)
        for call in range(1500):
            with contextlib.suppress(Interrupt):
                buffers = [bytes(40_000)] * (call % 3)
                a.link.send(Frame(Kind.CALL, b"body", buffers, call=call))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    a.link.send(Frame(Kind.CAST))
    calls = []
    ended = False
    while not ended or sent_by_handler:
        frame = b.frames.get(timeout=10)
        if frame.kind is Kind.CALL:
            calls.append(frame.call)
            assert sum(map(len, frame.buffers)) == frame.call % 3 * 40_000
        sent_by_handler -= frame.kind is Kind.EVENT
        ended |= frame.kind is Kind.CAST
    assert calls == sorted(set(calls))
    assert raises or calls == list(range(1500))


def test_a_forked_child_neither_speaks_on_a_link_nor_keeps_it(pair):
    a, b = pair
    a.opened.get(timeout=10)
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(LinkClosed):
            a.link.send(Frame(Kind.CALL, b"from the child"))
            os._exit(1)
        os._exit(0 if a.link._sock.fileno() == -1 else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    a.link.send(Frame(Kind.CALL, b"from the parent"))
    assert bytes(b.frames.get(timeout=10).body) == b"from the parent"


def test_after_a_send_the_sender_may_change_what_it_sent(reactor, monkeypatch):
    monkeypatch.setattr(sharing, "THRESHOLD", 1 << 60)  # through the socket
    ours, theirs = socket.socketpair()
    side = Side(reactor, ours)
    side.opened.get(timeout=10)
    payload = bytearray(b"a" * (4 << 20))

    def send_and_change() -> None:
        side.link.send(Frame(Kind.RESULT, b"", [payload]))
        payload[:] = b"b" * len(payload)

    sender = threading.Thread(target=send_and_change)
    sender.start()
    decoder = FrameDecoder()
    frames: list[Frame] = []
    while not frames:
        frames += decoder.feed(theirs.recv(1 << 16))
    sender.join(10)
    assert bytes(frames[0].buffers[0]) == b"a" * (4 << 20)
    theirs.close()
    side.closed.get(timeout=10)


def test_a_link_that_finishes_says_all_and_ends_when_the_peer_hangs_up(reactor, pair):
    a, b = pair
    a.opened.get(timeout=10)
    payload = bytes(8 << 20)

    def say_and_finish() -> None:
        a.link.post(Frame(Kind.CALL, b"", [payload]))
        a.link.finish()

    reactor.call_soon(say_and_finish)
    assert len(b.frames.get(timeout=20).buffers[0]) == len(payload)
    for side in (b, a):
        reason = side.closed.get(timeout=10)
        assert reason == "closed by the peer"
        side.closed.put(reason)  # the fixture waits for it, too


def test_descriptors_that_nobody_takes_are_closed(reactor):
    ours, theirs = socket.socketpair()
    side = Side(reactor, ours)
    side.opened.get(timeout=10)
    before = len(os.listdir("/proc/self/fd"))
    head = b"".join(bytes(part) for part in Frame(Kind.CONTROL, b"take this").parts(2))
    for _ in range(40):
        socket.send_fds(theirs, [head], [0, 1])
        assert side.frames.get(timeout=10).kind is Kind.CONTROL
    theirs.close()
    side.closed.get(timeout=10)
    assert len(os.listdir("/proc/self/fd")) <= before


def test_descriptors_that_no_frame_speaks_of_end_the_link(reactor):
    ours, theirs = socket.socketpair()
    side = Side(reactor, ours)
    side.opened.get(timeout=10)
    plain = b"".join(bytes(part) for part in Frame(Kind.PING).parts())
    with contextlib.suppress(OSError):
        for _ in range(10):
            socket.send_fds(theirs, [plain], [0] * 20)
    assert "descriptors" in side.closed.get(timeout=10)
    theirs.close()


def test_a_frame_for_which_there_is_no_memory_ends_the_link(reactor):
    ours, theirs = socket.socketpair()
    side = Side(reactor, ours)
    head = Frame(Kind.CALL).parts()[0]
    theirs.sendall(head[: len(head) - 8] + (1 << 40).to_bytes(8, "little"))
    # As many of those as the kernel maps for nothing, and more come.
    with contextlib.suppress(OSError):
        theirs.sendall(bytes(1000))
    assert "memory" in side.closed.get(timeout=10)
    theirs.close()


@pytest.mark.parametrize("kind", [Link, QuickLink])
def test_a_descriptor_that_somebody_took_outlives_the_link(reactor, kind):
    a, b = socket.socketpair()
    taken: queue.Queue[socket.socket] = queue.Queue()

    def take(link: Link, frame: Frame) -> None:
        taken.put(frame.take_socket())
        link.close()

    link = kind(reactor, a, authenticate=same_user, on_frame=take)
    other = Side(reactor, b, make=kind)
    reactor.call_soon(link.start)
    near, far = socket.socketpair()
    spare = os.dup(far.fileno())
    other.link.post(Frame(Kind.CALL, b"x"), (far.detach(), spare))
    other.closed.get(timeout=10)
    with near, taken.get(timeout=10) as sock:
        sock.send(b"y")
        assert near.recv(10) == b"y"
        sock.close()
        assert near.recv(10) == b""  # the one that nobody took was closed

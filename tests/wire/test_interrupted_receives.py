"""Signal handlers that raise at any moment of a receive: nothing is lost, no descriptor is left."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import socket
import threading
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.errors import LinkClosed
from slurmmesh.wire import Frame, Kind, Link, Reactor, same_user, shm, wrap
from slurmmesh.wire.identity import JobAuthority, client_context, peer_name, server_context
from slurmmesh.wire.links import TORN
from slurmmesh.wire.quick import QuickLink

pytestmark = pytest.mark.slow

FRAMES = 400
WIRE = str(Path(shm.__file__).parent)


class Interrupt(BaseException):
    pass


@pytest.fixture
def sender() -> Iterator[Reactor]:
    """A loop that is run by a thread."""
    loop = Reactor()
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield loop
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()


@contextlib.contextmanager
def interrupts() -> Iterator[list[str]]:
    """Raises again and again where the wire's code is at work; tells where."""
    told: list[str] = []

    def handler(_signum: int, frame: types.FrameType | None) -> None:
        # Not where an exception is only printed: in what Python runs when an object ends.
        while frame is not None and frame.f_code.co_name not in ("turn", "__del__", "ended"):
            if frame.f_code.co_filename.startswith(WIRE):
                told.append(frame.f_code.co_name)
                raise Interrupt
            frame = frame.f_back

    over = threading.Event()

    def send() -> None:
        while not over.wait(random.uniform(0.0002, 0.003)):
            signal.pthread_kill(main, signal.SIGUSR1)

    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Thread(target=send)
    thread.start()
    try:
        yield told
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def plain(sock: socket.socket) -> dict[str, Any]:
    return {"sock": sock, "authenticate": same_user}


def over_tls() -> list[dict[str, Any]]:
    authority = JobAuthority("job-1")
    contexts = (
        server_context(authority.issue("controller")),
        client_context(authority.issue("host")),
    )
    return [
        {"sock": wrap(sock, context, server_side=side == 0), "authenticate": peer_name}
        for side, (sock, context) in enumerate(zip(socket.socketpair(), contexts, strict=True))
    ]


def receive(
    sender: Reactor,
    kind: type[Link],
    ends: list[dict[str, Any]],
    send: Callable[[Link, int], Any],
    take: Callable[[Frame], Any],
) -> list[str]:
    """Send many frames to a link whose loop is run here and interrupted; all arrive in order."""
    loop, numbers, left, taken = Reactor(), [], [], []

    def on_frame(_link: Link, frame: Frame) -> None:
        try:
            take(frame)
        finally:
            if frame.is_taken:
                taken.append(frame.call)
        numbers.append(frame.call)

    theirs = kind(sender, **ends[0], on_frame=lambda _link, _frame: None)
    ours = kind(loop, **ends[1], on_frame=on_frame, on_close=lambda _link, why: left.append(why))
    sender.call_soon(theirs.start)
    loop.call_soon(ours.start)
    loop.enter()
    loop.raising = True
    while not ours.peer:
        loop.turn(0.01)

    def work() -> None:
        with contextlib.suppress(LinkClosed):
            for number in range(FRAMES):
                send(theirs, number)
            theirs.wait_sent()
        theirs.close()

    thread = threading.Thread(target=work)
    thread.start()
    with interrupts() as told:
        while not left:
            with contextlib.suppress(Interrupt):
                loop.turn(0.01)
    thread.join(20)
    loop.raising = False
    for _ in range(3):
        loop.turn(0)
    loop.leave()
    loop.close()
    # A frame at whose handling it raised is handed over again, but for one that was taken from.
    once = [n for n, before in zip(numbers, [-1, *numbers], strict=False) if n != before]
    # Told twice, if it raised then. Over TLS what has come in time has come in order.
    if ours._tls is not None and set(left) == {TORN}:
        assert once == list(range(len(once)))
    else:
        assert once == [n for n in range(FRAMES) if n in once or n not in taken]
        assert left[0].startswith(("closed by the peer", "broken: ")), left
    assert len(taken) == len(set(taken))
    return told


def open_descriptors() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("kind", [Link, QuickLink])
@pytest.mark.parametrize("body", [10, 50_000])
def test_descriptors_are_taken_or_closed(sender, kind, body):
    before = open_descriptors()

    def send(link: Link, number: int) -> None:
        ours, theirs = socket.socketpair()
        ours.send(b"%d" % number)
        ours.close()
        fds = (theirs.detach(), os.dup(0)) if number % 3 else ()
        link.post(Frame(Kind.CONTROL, bytes(body), call=number), fds)

    def take(frame: Frame) -> None:
        assert len(frame.body) == body
        if frame.call % 3 == 1:
            with frame.take_socket() as sock:
                assert sock.recv(10) == b"%d" % frame.call

    assert receive(sender, kind, [plain(sock) for sock in socket.socketpair()], send, take)
    assert open_descriptors() == before


@pytest.mark.parametrize("kind", [Link, QuickLink])
@pytest.mark.parametrize("body", [10, 50_000])
def test_shared_memory_is_given_back(sender, kind, body):
    before = open_descriptors()

    def send(link: Link, number: int) -> None:
        link.send(Frame(Kind.CALL, bytes(body), [bytes([number % 251]) * 300_000], call=number))

    def take(frame: Frame) -> None:
        data = bytes(frame.buffers[0])
        assert data == bytes([frame.call % 251]) * 300_000

    assert receive(sender, kind, [plain(sock) for sock in socket.socketpair()], send, take)
    assert open_descriptors() == before


@pytest.mark.parametrize("kind", [Link, QuickLink])
def test_over_tls_all_is_whole_or_the_link_ends(sender, kind):
    def send(link: Link, number: int) -> None:
        size = (10, 3000, 70_000)[number % 3]
        link.send(Frame(Kind.CALL, bytes([number % 251]) * size, [b"b" * size], call=number))

    def take(frame: Frame) -> None:
        size = (10, 3000, 70_000)[frame.call % 3]
        assert frame.body == bytes([frame.call % 251]) * size
        assert frame.buffers[0] == b"b" * size

    for _ in range(5):
        assert receive(sender, kind, over_tls(), send, take)

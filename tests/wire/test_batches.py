"""Links that gather: what a signal handler sends in the middle of a send goes out too, in order."""

from __future__ import annotations

import pickle
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from slurmmesh.wire import Frame, Kind, Reactor, same_user
from slurmmesh.wire.batches import BatchLink


class Ends:
    """A link that gathers and the peer's end, in one loop that the test runs itself."""

    def __init__(self) -> None:
        self.reactor = Reactor()
        self.got: list[Any] = []
        self.link, self.peer = (
            BatchLink(
                self.reactor,
                sock,
                authenticate=same_user,
                on_frame=self._frame,
                on_batch=lambda _link, _kind, body: self.got.extend(pickle.loads(body)),
            )
            for sock in socket.socketpair()
        )
        self.link.start()
        self.peer.start()

    def _frame(self, _link: Any, frame: Frame) -> None:
        if frame.kind is Kind.CALLS:
            self.got.extend(pickle.loads(frame.body))
        else:
            self.got.append(bytes(frame.body))

    def interrupt_next_post(self, monkeypatch: pytest.MonkeyPatch, handler: Any) -> None:
        """Run a handler where a signal would: amid the next post."""
        send, left = self.link._out.send_alone, [handler]

        def interrupted(data: Any) -> int:
            if left:
                left.pop()()
            return send(data)

        monkeypatch.setattr(self.link._out, "send_alone", interrupted)

    def run(self) -> None:
        for _ in range(5):
            self.reactor.turn(0)


@pytest.fixture
def ends() -> Iterator[Ends]:
    ends = Ends()
    yield ends
    ends.link.close()
    ends.run()
    ends.peer.close()
    ends.run()
    ends.reactor.close()


@pytest.mark.parametrize("outer", ["flush", "post"])
def test_what_a_handler_adds_amid_a_send_follows_by_itself(ends, monkeypatch, outer):
    ends.interrupt_next_post(monkeypatch, lambda: ends.link.add(Kind.CALLS, 2))
    if outer == "flush":
        ends.link.add(Kind.CALLS, 1)
        ends.link.flush()
    else:
        ends.link.post(Frame(Kind.CALL, b"1"))
    ends.run()
    assert ends.got == ([1, 2] if outer == "flush" else [b"1", 2])


def test_while_a_large_payload_is_copied_others_send(ends, monkeypatch):
    sharing = ends.link._sharing
    assert sharing is not None
    place, copying, go_on = sharing.place, threading.Event(), threading.Event()

    def slow(frame: Frame) -> Any:
        copying.set()
        assert go_on.wait(10)
        return place(frame)

    monkeypatch.setattr(sharing, "place", slow)
    large = Frame(Kind.CALL, b"large", [bytes(1 << 19)])
    thread = threading.Thread(target=ends.link.post, args=(large,))
    thread.start()
    assert copying.wait(10)
    ends.link.post(Frame(Kind.CALL, b"small"))
    go_on.set()
    thread.join(10)
    ends.run()
    assert ends.got == [b"small", b"large"]


def test_segments_come_back_over_a_link_that_gathers(ends):
    sharing = ends.link._sharing
    assert sharing is not None
    ends.link.post(Frame(Kind.CALL, b"large", [bytes(1 << 19)]))
    ends.run()
    assert ends.got == [b"large"]
    assert not sharing._lent

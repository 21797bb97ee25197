"""Which way messages go, at the moments when a way breaks or is full."""

from __future__ import annotations

import functools
import pickle
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slurmmesh.actors.addresses import ProcessId
from slurmmesh.actors.backlog import is_marker
from slurmmesh.actors.caller import MANY_MESHES, Caller
from slurmmesh.actors.direct import DirectLink, Place, Sending
from slurmmesh.actors.future import Future
from slurmmesh.actors.remote import ProcRuntime
from slurmmesh.errors import FrameError, LinkClosed
from slurmmesh.wire import Frame, FrameDecoder, Kind, Reactor, same_user
from slurmmesh.wire.batches import BatchLink
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import MAX_BUFFERS, SOON, STREAM
from slurmmesh.wire.links import HIGH_WATER


class Direct:
    """A caller with a direct link to rank 0 of mesh 1, whose peer is a socket of the test."""

    def __init__(self, driver: Driver, wait_until: Any) -> None:
        self.by_hosts: list[Frame] = []
        self.caller = Caller(
            driver, threading.RLock(), self.by_hosts.append, lambda mesh, rank: True
        )
        ours, self.peer = socket.socketpair()
        self.place = self.caller.place(1, 0)
        self.caller.connected(1, 0, 0, ours)
        self.caller.place(1, 1)
        wait_until(lambda: self.place.direct is not None)
        assert self.place.direct is not None
        self.link: DirectLink = self.place.direct

    def arrived(self) -> None:
        """What went by the hosts is known to have arrived."""
        for frame in self.by_hosts:
            self.caller.book.answer_ranks(frame.call, frame.ranks, None)


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(Reactor(), "test-links")
    driver.start()
    yield driver
    driver.stop()


@pytest.fixture
def direct(driver: Driver, wait_until: Any) -> Iterator[Direct]:
    direct = Direct(driver, wait_until)
    yield direct
    direct.peer.close()
    wait_until(lambda: direct.place.link is None)


@pytest.mark.parametrize("ranks", [(0,), (0, 1)])
@pytest.mark.parametrize("adverb", ["cast", "call", "stream"])
def test_what_a_link_that_just_broke_does_not_take_goes_by_the_hosts(direct, adverb, ranks):
    direct.caller.cast(Frame(Kind.CAST, b"before", mesh=1, ranks=(0,)))  # not acknowledged
    direct.link.closed = True  # as it is while it is being closed, in another thread
    frame = Frame(Kind.CAST if adverb == "cast" else Kind.CALL, b"x", mesh=1, ranks=ranks)
    if adverb == "call":
        future = direct.caller.call(frame, list, "a call")
    elif adverb == "stream":
        direct.caller.stream(frame, "a call")
    else:
        direct.caller.cast(frame)
    direct.link.closed = False
    assert [tuple(sent.ranks) for sent in direct.by_hosts] == [ranks]
    assert direct.place.direct is None
    direct.arrived()
    assert direct.place.under_way == 0
    assert not direct.caller.book._open
    if adverb == "call":
        assert future.get(0) == [None] * len(ranks)


@pytest.mark.parametrize("kind", [Kind.CALL, Kind.CAST])
@pytest.mark.parametrize("quiet", [True, False])
def test_a_message_over_the_limits_leaves_nothing_behind(direct, kind, quiet):
    def refuse(_frame: Frame) -> None:
        raise FrameError("too many buffers")

    direct.caller._by_hosts = refuse
    if not quiet:
        direct.caller.cast(Frame(Kind.CAST, b"before", mesh=1, ranks=(0,)))
    frame = Frame(kind, b"x", [b""] * (MAX_BUFFERS + 1), mesh=1, ranks=(0, 1))
    send: Any = direct.caller.cast
    if kind is Kind.CALL:
        send = functools.partial(direct.caller.call, finish=list, what="a call")
    with pytest.raises(FrameError):
        send(frame)
    assert not direct.caller.book._open
    assert direct.place.under_way == 0
    assert direct.place.direct is direct.link


@pytest.mark.parametrize(("timeout", "flag"), [(None, 0), (0.02, STREAM), (5.0, SOON)])
def test_answers_wait_for_each_other_as_the_deadline_allows(direct, timeout, flag):
    frame = Frame(Kind.CALL, b"x", mesh=1, ranks=(1, 2))
    future = direct.caller.call(frame, list, "a call", timeout=timeout)
    assert [sent.flags & (STREAM | SOON) for sent in direct.by_hosts] == [flag]
    direct.arrived()
    assert future.get(0) == [None, None]


def test_a_link_is_not_used_before_its_peer_is_known():
    place, link = Place(), object()
    leg = place.depart()
    place.link = link  # type: ignore[assignment]
    leg.arrive()
    assert place.direct is None
    place.connect(link)  # type: ignore[arg-type]
    assert place.direct is link
    place.disconnect()
    place.depart().arrive()
    assert place.direct is None


def test_a_link_that_is_there_is_not_asked_for_again(direct):
    asked = []
    direct.caller._ask = lambda mesh, rank: asked.append(rank) or True
    leg = direct.place.depart()  # something of before is under way by the hosts
    assert direct.place.direct is None
    direct.caller.call(Frame(Kind.CALL, b"x", mesh=1, ranks=(0,)), list, "a call")
    assert not asked
    direct.caller.call(Frame(Kind.CALL, b"x", mesh=1, ranks=(1,)), list, "a call")
    assert asked == [1]
    leg.arrive()
    direct.arrived()


@pytest.mark.parametrize("kind", ["plain call", "plain cast", "call", "cast"])
def test_who_is_about_to_use_a_direct_link_looks_again_whether_it_is_the_way(direct, kind):
    """Between the first look and the second another thread has sent something by the hosts."""
    link, frame = direct.link, Frame(Kind.CALL, b"x", mesh=1, ranks=(0,))
    leg = direct.place.depart()
    send: dict[str, Callable[[], Any]] = {
        "plain call": lambda: link.call_plain(1, "x", (), None, Future()),
        "plain cast": lambda: link.cast_plain(1, "x", (), None),
        "call": lambda: link.send_message(frame, lambda value, error: None),
        "cast": lambda: link.send_message(frame, None),
    }
    with pytest.raises(LinkClosed):
        send[kind]()
    assert link.is_quiet
    direct.caller.cast(frame)
    assert bytes(direct.by_hosts[0].body) == b"x"
    leg.arrive()
    direct.arrived()
    assert direct.place.direct is link


def test_a_message_that_is_to_go_by_a_direct_link_makes_others_wait_for_that(direct):
    caller, place, link = direct.caller, direct.place, direct.link
    caller.cast(Frame(Kind.CAST, b"over the link", mesh=1, ranks=(0,)))
    sending = Sending()
    assert place.promise(sending) is link
    link._last_answer = link._last_cast  # as when it is answered before that one is sent
    caller.cast(Frame(Kind.CAST, b"to both", mesh=1, ranks=(0, 1)))
    assert [tuple(sent.ranks) for sent in direct.by_hosts] == [(1,)]
    direct.arrived()
    assert place.direct is link
    assert set(link.promised) == {sending}
    del sending
    assert not link.promised


def test_while_something_goes_by_the_hosts_so_does_all_that_comes_after(direct):
    leg = direct.place.depart()
    direct.link.send_message(Frame(Kind.CAST, b"of a handler"), None, promised=True)
    direct.caller.cast(Frame(Kind.CAST, b"to both", mesh=1, ranks=(0, 1)))
    assert [tuple(sent.ranks) for sent in direct.by_hosts] == [(0, 1)]
    leg.arrive()
    direct.arrived()


def test_a_marker_that_is_interrupted_frees_nothing_and_another_follows(direct):
    caller, place, sent = direct.caller, direct.place, direct.by_hosts

    def interrupts_markers(frame: Frame) -> None:
        if is_marker(frame):
            raise KeyboardInterrupt
        sent.append(frame)

    place.depart()  # long
    caller._by_hosts = interrupts_markers
    frame = Frame(Kind.CAST, b"x", mesh=1, actor=1, ranks=(0,))
    with pytest.raises(KeyboardInterrupt):
        caller.cast(frame)
    direct.arrived()
    assert place.direct is None
    caller._by_hosts = sent.append
    while not is_marker(sent[-1]):
        caller.cast(frame)
        assert len(sent) < 100
    direct.arrived()
    assert place.direct is direct.link
    assert not caller.book._open


def test_a_message_that_is_interrupted_counts_until_a_marker_behind_it_has_arrived(direct):
    caller, place, sent = direct.caller, direct.place, direct.by_hosts

    def interrupt(frame: Frame) -> None:
        sent.append(frame)
        raise KeyboardInterrupt

    caller._by_hosts = interrupt
    with pytest.raises(KeyboardInterrupt):
        caller.cast(Frame(Kind.CAST, b"x", mesh=1, actor=1, ranks=(0, 1)))
    assert not caller.book._open
    assert place.direct is None
    caller._by_hosts = sent.append
    caller.cast(Frame(Kind.CAST, b"x", mesh=1, actor=1, ranks=(0,)))
    assert is_marker(sent[-1])
    direct.arrived()
    assert place.direct is direct.link


def test_a_marker_frees_the_direct_link_of_what_was_sent_before_it(direct):
    caller, place, sent = direct.caller, direct.place, direct.by_hosts

    def cast(body: bytes) -> None:
        caller.cast(Frame(Kind.CAST, body, mesh=1, actor=1, ranks=(0,)))

    def sends_another_before(frame: Frame) -> None:
        caller._by_hosts = sent.append
        cast(b"2")  # as another thread may, while this one is counted and not sent yet
        sent.append(frame)

    long = place.depart()
    caller._by_hosts = sends_another_before
    cast(b"1")
    cast(b"3")
    assert [bytes(frame.body) for frame in sent] == [b"2", b"1", b"", b"3"]
    assert [is_marker(frame) for frame in sent] == [False, False, True, False]
    caller.book.answer_ranks(sent[2].call, (0,), None)
    assert place.direct is None  # of the last one nobody knows
    caller.book.answer_ranks(sent[3].call, (0,), None)
    assert place.direct is direct.link
    assert long.under_way == 3
    long.arrive()
    direct.arrived()
    assert place.direct is direct.link
    assert place.under_way == 0
    assert not caller.book._open


def test_what_a_handler_sends_amid_a_send_has_the_larger_number(direct, monkeypatch, wait_until):
    """The peer drops what comes with a smaller number than it has seen."""
    send, left = direct.link._out.send_alone, [True]

    def interrupted(data: Any) -> int:
        if left and left.pop():
            direct.link.send_message(Frame(Kind.CAST, b"of the handler"), None)
        return send(data)

    monkeypatch.setattr(direct.link._out, "send_alone", interrupted)
    direct.link.send_message(Frame(Kind.CAST, b"first"), None)
    direct.link.cast_plain(1, "then", (), None)
    wait_until(lambda: direct.link._number == 3)
    decoder, numbers = FrameDecoder(), []
    direct.peer.settimeout(10)
    while len(numbers) < 3:
        for frame in decoder.feed(direct.peer.recv(1 << 16)):
            if frame.kind is Kind.CALLS:
                numbers += [abs(number) for number, *_ in pickle.loads(frame.body)]
            else:
                numbers.append(frame.call)
    assert numbers == [1, 2, 3]


def test_a_proc_whose_host_does_not_read_takes_answers_while_a_call_waits_for_room(
    driver, wait_until
):
    ours, host = socket.socketpair()
    link = BatchLink(
        driver.reactor,
        ours,
        authenticate=same_user,
        on_frame=lambda _link, frame: runtime.take(frame),
        on_batch=lambda *_: None,
        driver=driver,
    )
    runtime = ProcRuntime("job", ProcessId(1, 0), driver, link, None)
    driver.reactor.call_soon(link.start)
    wait_until(lambda: bool(link.peer))
    link.post(Frame(Kind.CAST, bytes(HIGH_WATER + (8 << 20))))
    call, answer = runtime.caller.book.open(5, (0,), lambda values: values[0], "another's call")
    runtime.place(2, 0)
    request = Frame(Kind.CALL, b"x", mesh=2, ranks=(0,))
    thread = threading.Thread(target=runtime.call, args=(request, list, "a call"))
    thread.start()
    wait_until(lambda: link._out.end > HIGH_WATER + (8 << 20) + 100)  # it has asked, and waits
    host.sendall(b"".join(Frame(Kind.RESULT, pickle.dumps(7), call=call, ranks=(0,)).parts()))
    assert answer.get(20) == 7
    host.settimeout(20)
    with host:
        while thread.is_alive():
            assert host.recv(1 << 20)
            thread.join(0)
        link.close()
        while host.recv(1 << 20):
            pass


def test_of_many_meshes_those_without_link_and_news_to_come_are_forgotten(direct):
    caller = direct.caller
    waiting = caller.place(2, 0)
    caller.cast(Frame(Kind.CAST, b"", mesh=2, actor=1, ranks=(0,)))
    for mesh in range(3, 10 * MANY_MESHES):
        caller.place(mesh, 0)
        caller.cast(Frame(Kind.CAST, b"", mesh=mesh, actor=1, ranks=(0, 1)))
        direct.by_hosts[1:] = direct.by_hosts[:0]
        for call in [call for call in caller.book._open if call > 1]:
            caller.book.answer_ranks(call, (0, 1), None)
    assert len(caller._places) <= 2 * MANY_MESHES
    assert len(caller._backlogs) <= 2 * MANY_MESHES
    assert caller.place(1, 0) is direct.place
    assert caller.place(2, 0) is waiting
    direct.arrived()


def test_a_mesh_that_is_forgotten_while_it_is_called_keeps_its_order(direct, monkeypatch):
    caller = direct.caller

    def forgotten(_frame: Frame) -> None:
        caller.place(2, 0)
        caller.forget(2)

    monkeypatch.setattr(caller, "_direct", forgotten)
    caller.cast(Frame(Kind.CAST, b"by the hosts", mesh=2, actor=1, ranks=(0,)))
    assert caller.place(2, 0).under_way == 1
    direct.arrived()
    assert caller.place(2, 0).under_way == 0


def test_a_link_that_comes_when_its_mesh_is_forgotten_is_closed(direct):
    ours, peer = socket.socketpair()
    with peer:
        direct.caller.connected(2, 0, 0, ours)
        assert ours.fileno() == -1
        assert direct.caller.place(2, 0).link is None

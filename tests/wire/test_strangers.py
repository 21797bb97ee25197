"""A listener among strangers, over real sockets: who is heard, who has to go, what is said."""

from __future__ import annotations

import contextlib
import errno
import queue
import socket
import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import IdentityError
from slurmmesh.wire import Frame, Kind, Link, Listener, Reactor, wrap
from slurmmesh.wire.identity import Credentials, JobAuthority, client_context, peer_name
from slurmmesh.wire.strangers import QUIET_S, Guests, Refusals

AUTHORITY = JobAuthority("job-1")
BODY = b"\x80\x05N."


# ------------------------------------------------------------------ pure


def test_the_oldest_of_the_most_crowded_address_has_to_go():
    guests: Guests[str] = Guests(most=4)
    for guest, address in (("a", "node1"), ("b", "crowd"), ("c", "crowd"), ("d", "crowd")):
        assert guests.add(guest, address) is None
    assert guests.add("e", "node2") == "b"
    guests.remove("c")
    guests.remove("c")
    assert guests.add("f", "crowd") is None
    assert guests.add("g", "crowd") == "d"
    assert guests.all() == ["a", "e", "f", "g"]


@given(st.lists(st.sampled_from("xyz"), max_size=60), st.integers(1, 8))
def test_there_are_never_more_guests_than_may_be_and_each_that_goes_is_told(addresses, most):
    guests: Guests[int] = Guests(most)
    gone = {guests.add(number, address) for number, address in enumerate(addresses)} - {None}
    assert len(guests) <= most
    assert gone | set(guests.all()) == set(range(len(addresses)))
    assert not gone & set(guests.all())


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_few_refusals_are_told_one_by_one_and_many_are_counted():
    told: list[str] = []
    clock = Clock()
    refusals = Refusals(told.append, clock)
    waits = [refusals.add(f"refused {number}") for number in range(100)]
    assert told == [f"refused {number}" for number in range(20)]
    assert waits == [0.0] * 20 + [QUIET_S] + [0.0] * 79
    refusals.tick()
    assert len(told) == 20  # it is not time yet
    clock.now += QUIET_S
    refusals.tick()
    assert told[20:] == ["refused 80 more connections in 10 s"]


def test_after_a_flood_each_refusal_is_told_again():
    told: list[str] = []
    clock = Clock()
    refusals = Refusals(told.append, clock)
    for _ in range(30):
        refusals.add("x")
    refusals.flush()
    clock.now += 2 * QUIET_S
    refusals.add("a stranger, later")
    assert told[-1] == "a stranger, later"
    refusals.flush()
    assert told[-1] == "a stranger, later"  # all was told


@given(st.lists(st.floats(0.0, 100.0), max_size=60))
def test_each_refusal_is_told_or_counted_once(gaps):
    told: list[str] = []
    clock = Clock()
    refusals = Refusals(told.append, clock)
    for gap in gaps:
        clock.now += gap
        refusals.add("x")
        refusals.tick()
    refusals.flush()
    counted = sum(int(line.split()[1]) for line in told if line != "x")
    assert counted + told.count("x") == len(gaps)


@pytest.mark.parametrize("gap_s", [0.2, 1.0, 30.0])
def test_a_flood_of_days_takes_little_of_a_disk(gap_s):
    told: list[str] = []
    clock = Clock()
    refusals = Refusals(told.append, clock)
    for _ in range(int(86400 / gap_s)):
        clock.now += gap_s
        refusals.add("refused a connection: 10.0.0.1 did not prove that it belongs to this job")
    assert sum(map(len, told)) < 250_000


# ------------------------------------------------------------------ a listener


class Door:
    """A listener whose known peers, and what they said, are kept."""

    def __init__(self, reactor: Reactor, credentials: Credentials) -> None:
        self.opened: queue.Queue[Link] = queue.Queue()
        self.frames: queue.Queue[Frame] = queue.Queue()
        self.closed: queue.Queue[str] = queue.Queue()
        self.barred: set[str] = set()
        self.listener = Listener(
            reactor,
            credentials,
            ("host", "controller"),
            "127.0.0.1",
            on_open=self.opened.put,
            on_frame=lambda _link, frame: self.frames.put(frame),
            on_close=lambda _link, reason: self.closed.put(reason),
            admit=self._admit,
        )
        self.address = ("127.0.0.1", self.listener.port)

    def _admit(self, name: str) -> None:
        if name in self.barred:
            raise IdentityError(f"{name} is barred here")

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=20)

    def greet(self, credentials: Credentials) -> bytes:
        """Speak as one with these credentials; b"" when it hangs up."""
        with wrap(self.connect(), client_context(credentials), server_side=False) as sock:
            try:
                sock.do_handshake()
                sock.sendall(b"".join(map(bytes, Frame(Kind.CALL, BODY).parts())))
                return sock.recv(100)
            except OSError:
                return b""


@pytest.fixture
def reactor() -> Iterator[Reactor]:
    loop = Reactor()
    thread = threading.Thread(target=loop.run)
    thread.start()
    yield loop
    loop.stop()
    thread.join(10)
    assert not thread.is_alive()


@pytest.fixture
def door(reactor: Reactor) -> Iterator[Door]:
    made = Door(reactor, AUTHORITY.issue("host-0"))
    reactor.call_soon(made.listener.start)
    yield made
    in_loop(reactor, made.listener.close)


def in_loop(reactor: Reactor, callback: Callable[[], object]) -> None:
    done = threading.Event()
    reactor.call_soon(lambda: (callback(), done.set()))
    assert done.wait(20)


def hung_up(sock: socket.socket) -> bool:
    try:
        while sock.recv(4096):
            pass  # TLS may say in its own words that it did not understand
    except ConnectionResetError:
        pass
    return True


def member(door: Door, reactor: Reactor, credentials: Credentials) -> Link:
    """A link of a member that was let in."""
    client = Link(
        reactor,
        wrap(door.connect(), client_context(credentials), server_side=False),
        authenticate=peer_name,
        on_frame=lambda _link, _frame: None,
    )
    reactor.call_soon(client.start)
    assert door.opened.get(timeout=20).peer == credentials.name
    return client


def test_members_are_heard(door, reactor, capfd):
    for name in ("host-3", "controller"):
        client = member(door, reactor, AUTHORITY.issue(name))
        client.send(Frame(Kind.CALL, BODY))
        assert bytes(door.frames.get(timeout=20).body) == BODY
        client.close()
        assert door.closed.get(timeout=20) == "closed by the peer"
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    ("credentials", "why"),
    [
        (JobAuthority("job-1").issue("host-3"), "it belongs to another job"),
        (AUTHORITY.issue("proc-1"), "only host or controller may be here"),
        (AUTHORITY.issue("host-9"), "host-9 is barred here"),
        (AUTHORITY.issue("host-8"), "host-8, whose certificate is revoked"),
    ],
)
def test_a_refused_member_is_one_line_and_no_callback(
    reactor, credentials, why, monkeypatch, wait_until
):
    said: list[str] = []  # reading stderr while another thread writes loses lines
    monkeypatch.setattr("slurmmesh.wire.listener.say", said.append)
    ours = JobAuthority("job-1")
    ours._key, ours._certificate = AUTHORITY._key, AUTHORITY._certificate
    door = Door(reactor, ours.issue("host-0"))
    reactor.call_soon(door.listener.start)
    ours.revoke("host-8")
    door.barred.add("host-9")
    assert door.greet(credentials) == b""
    wait_until(lambda: said)
    in_loop(reactor, door.listener.close)
    [line] = said
    assert line.startswith("slurmmesh: refused a connection: 127.0.0.1")
    assert why in line
    assert door.opened.empty()
    assert door.frames.empty()
    assert door.closed.empty()


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.0\r\n\r\n", b"SM\x01\x03" + bytes(100)])
def test_a_stranger_without_tls_is_not_listened_to(reactor, door, words: bytes):
    with door.connect() as stranger:
        stranger.sendall(words)
        with contextlib.suppress(OSError):  # the other side may have hung up already
            stranger.shutdown(socket.SHUT_WR)
        assert hung_up(stranger)
    assert door.frames.empty()
    assert door.opened.empty()


def test_one_who_says_nothing_or_only_half_is_closed_when_its_time_is_up(
    reactor, monkeypatch, capfd
):
    monkeypatch.setattr("slurmmesh.wire.links.HANDSHAKE_TIMEOUT_S", 0.3)
    door = Door(reactor, AUTHORITY.issue("host-0"))
    reactor.call_soon(door.listener.start)
    hello = ssl.MemoryBIO()
    client = client_context(AUTHORITY.issue("host-1")).wrap_bio(ssl.MemoryBIO(), hello)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    words = hello.read()
    with door.connect() as silent, door.connect() as half, door.connect() as slow:
        half.sendall(words)
        for position in range(20):
            slow.sendall(words[position : position + 1])
        assert all(map(hung_up, (silent, half, slow)))
    in_loop(reactor, lambda: None)
    assert len(door.listener._guests) == 0
    in_loop(reactor, door.listener.close)
    assert capfd.readouterr().err.count("no handshake in time") == 3


def test_a_crowd_at_one_address_costs_little_and_keeps_no_member_out(reactor, door, capfd):
    door.listener._guests.most = 8
    crowd = [door.connect() for _ in range(100)]
    client = member(door, reactor, AUTHORITY.issue("host-1"))
    assert crowd[0].recv(1) == b""  # the first to come was the first that had to go
    assert len(door.listener._guests) <= 8
    for sock in crowd:
        sock.close()
    client.close()
    door.closed.get(timeout=20)
    in_loop(reactor, door.listener.close)
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 21
    assert said[0].endswith("127.0.0.1: it did not prove itself before many others came")
    assert "more connections in" in said[-1]


def test_closing_turns_guests_away_and_leaves_members(reactor, door, capfd):
    client = member(door, reactor, AUTHORITY.issue("host-1"))
    with door.connect() as guest:
        in_loop(reactor, lambda: None)
        in_loop(reactor, door.listener.close)
        in_loop(reactor, door.listener.close)
        assert hung_up(guest)
    client.send(Frame(Kind.CALL, BODY))
    assert bytes(door.frames.get(timeout=20).body) == BODY
    client.close()
    assert door.closed.get(timeout=20)
    assert capfd.readouterr().err == ""


def test_a_listener_without_descriptors_waits_and_goes_on(reactor, door, monkeypatch, capfd):
    accept = socket.socket.accept
    refused = threading.Event()

    def no_room(sock: socket.socket) -> object:
        monkeypatch.setattr(socket.socket, "accept", accept)
        refused.set()
        raise OSError(errno.EMFILE, "too many")

    monkeypatch.setattr("slurmmesh.wire.listener._RETRY_S", 0.01)
    monkeypatch.setattr(socket.socket, "accept", no_room)
    client = member(door, reactor, AUTHORITY.issue("host-1"))
    assert refused.is_set()
    client.close()
    assert door.closed.get(timeout=20)
    assert "cannot accept a connection, trying again" in capfd.readouterr().err

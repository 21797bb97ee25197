"""The state's way from donor to receiver, and who is kept out of it. Real sockets and TLS."""

from __future__ import annotations

import contextlib
import pickle
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta

import pytest
import torch

from slurmmesh.errors import IdentityError
from slurmmesh.recovery import transport as module
from slurmmesh.recovery.transport import REQUEST, SecureTransport, StateUnavailable
from slurmmesh.wire.identity import (
    Credentials,
    JobAuthority,
    Revoked,
    client_context,
    server_context,
)

SOON = timedelta(seconds=0.2)
LATER = timedelta(seconds=30)
AUTHORITY = JobAuthority("this-job")
STRANGER = JobAuthority("this-job").issue("host-1")  # same names, another authority

Make = Callable[..., SecureTransport]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[SecureTransport] = []

    def build(credentials: Credentials | str = "host-0", **options) -> SecureTransport:
        if isinstance(credentials, str):
            credentials = AUTHORITY.issue(credentials)
        made.append(SecureTransport("127.0.0.1", credentials, options.pop("timeout_s", 20.0)))
        for name, value in options.items():
            setattr(made[-1], name, value)
        return made[-1]

    yield build
    for each in made:
        each.shutdown()


def state(size: int = 1000) -> dict:
    return {"weights": torch.randn(size), "step": 7, "nested": [torch.arange(3)]}


def port_of(transport: SecureTransport) -> int:
    return int(transport.metadata().rpartition(":")[2])


def test_the_state_arrives(make):
    donor, receiver = make("host-0"), make("host-1")
    sent = state(1 << 20)
    donor.send_checkpoint([1], 7, sent, LATER)
    got = receiver.recv_checkpoint(0, donor.metadata(), 7, LATER)
    assert torch.equal(got["weights"], sent["weights"])
    assert torch.equal(got["nested"][0], sent["nested"][0])
    assert got["step"] == 7


def test_several_receivers_at_once(make):
    donor = make()
    sent = state(1 << 18)
    donor.send_checkpoint([1, 2, 3], 3, sent, LATER)
    got: list[dict] = []

    def fetch(receiver: SecureTransport) -> None:
        got.append(receiver.recv_checkpoint(0, donor.metadata(), 3, LATER))

    threads = [
        threading.Thread(target=fetch, args=(make(f"host-{index}"),)) for index in range(1, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(got) == 3
    assert all(torch.equal(each["weights"], sent["weights"]) for each in got)


def test_a_receiver_that_comes_first_waits_for_the_offer(make):
    donor, receiver = make("host-0"), make("host-1")
    got: list[dict] = []
    thread = threading.Thread(
        target=lambda: got.append(receiver.recv_checkpoint(0, donor.metadata(), 7, LATER))
    )
    thread.start()
    donor.send_checkpoint([1], 7, state(), LATER)
    thread.join(30)
    assert got


def test_only_the_offered_step_is_served(make):
    donor, receiver = make("host-0"), make("host-1")
    donor.send_checkpoint([1], 7, state(), LATER)
    with pytest.raises(StateUnavailable, match=r"no state of step 8 \(that of step 7\)"):
        receiver.recv_checkpoint(0, donor.metadata(), 8, SOON)
    donor.disallow_checkpoint()
    with pytest.raises(StateUnavailable, match=r"no state of step 7 \(none\)"):
        receiver.recv_checkpoint(0, donor.metadata(), 7, SOON)


def test_a_receiver_gives_up_when_told(make):
    donor = make("host-0")
    receiver = make("host-1", _give_up=lambda: True)
    with pytest.raises(StateUnavailable):
        receiver.recv_checkpoint(0, donor.metadata(), 7, LATER)


def test_the_donor_waits_until_the_state_is_sent(make):
    donor, receiver = make("host-0"), make("host-1")
    sent = state(1 << 22)
    expected = sent["weights"].clone()
    donor.send_checkpoint([1], 1, sent, LATER)
    taken = threading.Event()
    take = donor._take

    def take_and_tell(wanted: int):
        offered = take(wanted)
        taken.set()
        return offered

    donor._take = take_and_tell
    got: list[dict] = []
    thread = threading.Thread(
        target=lambda: got.append(receiver.recv_checkpoint(0, donor.metadata(), 1, LATER))
    )
    thread.start()
    assert taken.wait(30)
    donor.disallow_checkpoint()
    sent["weights"].zero_()  # as the optimizer would
    thread.join(30)
    assert torch.equal(got[0]["weights"], expected)


def test_a_dead_donor_is_told_at_once(make):
    donor, receiver = make("host-0"), make("host-1")
    metadata = donor.metadata()
    donor.shutdown()
    with pytest.raises(StateUnavailable, match="is gone"):
        receiver.recv_checkpoint(0, metadata, 1, LATER)


def test_a_donor_that_breaks_off_is_told(make):
    donor, receiver = make("host-0"), make("host-1")

    def hang_up(secure: ssl.SSLSocket, wanted: int) -> None:
        secure.sendall(module.REPLY.pack(b"SMst", 0, wanted, 1000))
        secure.sendall(b"half a head")

    donor._answer = hang_up
    with pytest.raises(StateUnavailable, match="broke off"):
        receiver.recv_checkpoint(0, donor.metadata(), 1, LATER)


def test_a_fetch_can_be_broken_off_from_another_thread(make):
    donor, receiver = make("host-0"), make("host-1")
    stuck, go_on = threading.Event(), threading.Event()

    def stall(secure: ssl.SSLSocket, wanted: int) -> None:
        stuck.set()
        go_on.wait(30)

    donor._answer = stall
    errors: list[BaseException] = []

    def fetch() -> None:
        try:
            receiver.recv_checkpoint(0, donor.metadata(), 1, LATER)
        except StateUnavailable as error:
            errors.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    assert stuck.wait(30)
    receiver.break_off()
    thread.join(30)
    go_on.set()
    assert errors


# ---------------------------------------------------------------------------- strangers


EXPLOSIONS: list[str] = []


def explode() -> None:
    EXPLOSIONS.append("unpickled")


class Bomb:
    """Unpickling it would be noticed."""

    def __reduce__(self):
        return explode, ()


def test_the_bomb_is_one():
    pickle.loads(pickle.dumps(Bomb()))
    assert EXPLOSIONS.pop()


def test_another_jobs_member_gets_nothing(make):
    donor, receiver = make("host-0"), make(STRANGER)
    donor.send_checkpoint([1], 1, state(), LATER)
    with pytest.raises((IdentityError, StateUnavailable)):
        receiver.recv_checkpoint(0, donor.metadata(), 1, SOON)
    assert donor._sending == 0


def test_another_jobs_donor_is_not_believed(make):
    donor, receiver = make(STRANGER), make("host-0")
    donor.send_checkpoint([1], 1, {"bomb": Bomb()}, LATER)
    with pytest.raises(IdentityError):
        receiver.recv_checkpoint(0, donor.metadata(), 1, SOON)
    assert not EXPLOSIONS


def test_a_member_under_another_name_is_not_the_donor(make):
    donor, receiver = make("host-5"), make("host-1")
    donor.send_checkpoint([1], 1, {"bomb": Bomb()}, LATER)
    metadata = donor.metadata().replace("host-5@", "host-0@")
    with pytest.raises(IdentityError, match="is host-5, not donor host-0"):
        receiver.recv_checkpoint(0, metadata, 1, SOON)
    assert not EXPLOSIONS


def test_a_plain_server_is_not_the_donor(make):
    receiver = make("host-1")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.sendall(pickle.dumps(Bomb()))
                connection.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((IdentityError, StateUnavailable)):
            receiver.recv_checkpoint(0, f"host-0@127.0.0.1:{listener.getsockname()[1]}", 1, SOON)
        thread.join(30)
    assert not EXPLOSIONS


def test_a_client_without_a_certificate_gets_nothing(make):
    donor = make()
    donor.send_checkpoint([1], 1, state(), LATER)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    plain = socket.create_connection(("127.0.0.1", port_of(donor)), timeout=20)

    def ask() -> bytes:
        with plain, context.wrap_socket(plain) as secure:
            secure.sendall(REQUEST.pack(b"SMst", 1))
            return secure.recv(100)

    with contextlib.suppress(OSError):
        assert ask() == b""
    assert donor._sending == 0


@pytest.mark.parametrize(
    "noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00" * 4096, pickle.dumps(Bomb()), b"\x16\x03\x01"]
)
def test_garbage_is_hung_up_on_and_the_donor_goes_on(make, noise):
    donor, receiver = make("host-0"), make("host-1")
    donor.send_checkpoint([1], 1, state(), LATER)
    with socket.create_connection(("127.0.0.1", port_of(donor)), timeout=20) as plain:
        plain.sendall(noise)
        with contextlib.suppress(OSError):
            plain.shutdown(socket.SHUT_WR)
            while plain.recv(4096):
                pass
    assert receiver.recv_checkpoint(0, donor.metadata(), 1, LATER)["step"] == 7
    assert not EXPLOSIONS


def test_a_member_that_speaks_another_protocol_is_hung_up_on(make):
    donor = make()
    donor.send_checkpoint([1], 1, state(), LATER)
    context = client_context(AUTHORITY.issue("host-9"))
    with (
        socket.create_connection(("127.0.0.1", port_of(donor)), timeout=20) as plain,
        context.wrap_socket(plain) as secure,
    ):
        secure.sendall(b"X" * REQUEST.size)
        assert secure.recv(100) == b""


def test_silent_connections_do_not_keep_others_out(make, monkeypatch, caplog):
    monkeypatch.setattr(module, "_MAX_GUESTS", 2)
    monkeypatch.setattr(module, "_HANDSHAKE_S", 3600.0)
    donor, receiver = make("host-0"), make("host-1")
    donor.send_checkpoint([1], 1, state(), LATER)
    address = ("127.0.0.1", port_of(donor))
    silent = [socket.create_connection(address, timeout=20) for _ in range(50)]
    try:
        assert receiver.recv_checkpoint(0, donor.metadata(), 1, LATER)["step"] == 7
        for each in silent[:-1]:  # the last one's time is not up
            assert each.recv(100) == b""
    finally:
        for each in silent:
            each.close()
    donor.shutdown()
    assert 0 < len(caplog.records) <= 21
    assert "refused 127.0.0.1, who asked for this replica's state" in caplog.text


def test_one_who_says_nothing_is_hung_up_on(make, monkeypatch):
    monkeypatch.setattr(module, "_HANDSHAKE_S", 0.2)
    donor = make("host-0")
    with socket.create_connection(("127.0.0.1", port_of(donor)), timeout=20) as silent:
        assert silent.recv(100) == b""


@pytest.mark.parametrize("name", ["host-7", "proc-1"])
def test_a_revoked_host_and_one_who_is_no_host_get_nothing(make, name, wait_until, caplog):
    credentials = AUTHORITY.issue("host-0")
    donor, receiver = make(replace(credentials, revoked=Revoked(["host-7"]))), make(name)
    donor.send_checkpoint([1], 1, state(), LATER)
    with pytest.raises(StateUnavailable):
        receiver.recv_checkpoint(0, donor.metadata(), 1, LATER)
    assert donor._sending == 0
    wait_until(lambda: f"the peer is {name}" in caplog.text)


def test_a_revoked_donor_is_not_believed(make):
    donor = make("host-7")
    receiver = make(replace(AUTHORITY.issue("host-1"), revoked=Revoked(["host-7"])))
    donor.send_checkpoint([1], 1, {"bomb": Bomb()}, LATER)
    with pytest.raises(IdentityError, match="host-7, whose certificate is revoked"):
        receiver.recv_checkpoint(0, donor.metadata(), 1, SOON)
    assert not EXPLOSIONS


def test_the_offer_of_a_stranger_in_the_middle_is_refused(make):
    """A relay that has no certificate of the job cannot show one."""
    context = server_context(STRANGER)
    receiver = make("host-1")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(IdentityError):
            receiver.recv_checkpoint(0, f"host-0@127.0.0.1:{listener.getsockname()[1]}", 1, SOON)
        thread.join(30)

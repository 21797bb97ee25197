"""Finding and cutting the connections of native code, on real sockets."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator

import pytest

from slurmmesh.recovery.sockets import ConnectionGuard


class Server:
    """A listener whose connections stay open until it is closed."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self.listener.getsockname()[1]
        self.accepted: list[socket.socket] = []

    def connect(self, native: bool) -> socket.socket:
        """A connection to it; ``native``: without close-on-exec, as Gloo makes them."""
        made = socket.create_connection(("127.0.0.1", self.port))
        made.set_inheritable(native)
        self.accepted.append(self.listener.accept()[0])
        return made

    def close(self) -> None:
        for each in (self.listener, *self.accepted):
            each.close()


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


@pytest.fixture
def guard() -> Iterator[ConnectionGuard]:
    made = ConnectionGuard()
    yield made
    made.release()


def is_open(connection: socket.socket) -> bool:
    connection.settimeout(0.0)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True


def test_only_connections_made_in_between_by_native_code_are_held(server, guard):
    with server.connect(native=True) as before:
        guard.begin(store_port=1)
        with server.connect(native=True) as native, server.connect(native=False) as python:
            guard.complete()
            with server.connect(native=True) as after:
                guard.cut()
                assert not is_open(native)
                assert is_open(before)
                assert is_open(python)
                assert is_open(after)


def test_the_store_client_is_known_by_its_port(server, guard):
    guard.begin(store_port=server.port)
    with server.connect(native=False) as client:
        guard.complete()
        guard.cut()
        assert not is_open(client)


def test_listening_sockets_and_other_families_are_left_alone(guard):
    guard.begin(store_port=1)
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.create_server(("127.0.0.1", 0)) as listener:
        for each in (ours, theirs, listener):
            each.set_inheritable(True)
        guard.complete()
        guard.cut()
        assert is_open(ours)
        socket.create_connection(listener.getsockname()).close()


def test_a_thread_that_waits_for_data_wakes_up(server, guard):
    guard.begin(store_port=1)
    with server.connect(native=True) as native:
        guard.complete()
        got: list[bytes] = []
        waiting = threading.Thread(target=lambda: got.append(native.recv(1)))
        waiting.start()
        guard.cut()
        waiting.join(10)
        assert got == [b""]


def test_both_ends_see_the_cut(server, guard):
    guard.begin(store_port=1)
    with server.connect(native=True):
        guard.complete()
        guard.cut()
        server.accepted[0].settimeout(10)
        assert server.accepted[0].recv(1) == b""


def test_a_descriptor_that_was_closed_and_given_out_again_is_not_touched(server, guard):
    guard.begin(store_port=1)
    native = server.connect(native=True)
    number = native.fileno()
    guard.complete()
    native.close()
    read, write = os.pipe()
    try:
        reused = socket.socketpair()
        numbers = {read, write, *(each.fileno() for each in reused)}
        assert number in numbers
        guard.cut()
        assert is_open(reused[0])
        for each in reused:
            each.close()
    finally:
        os.close(read)
        os.close(write)


def test_cutting_during_the_setup_goes_on_until_it_ends(server, guard):
    guard.begin(store_port=1)
    cutter = threading.Thread(target=guard.cut)
    cutter.start()
    with server.connect(native=True) as late:
        server.accepted[0].settimeout(10)
        assert server.accepted[0].recv(1) == b""
        guard.release()
        cutter.join(10)
        assert not cutter.is_alive()
        assert not is_open(late)


def test_release_lets_go_and_can_be_repeated(server, guard):
    guard.begin(store_port=1)
    with server.connect(native=True) as native:
        guard.complete()
        guard.release()
        guard.release()
        assert not is_open(native)
        guard.cut()

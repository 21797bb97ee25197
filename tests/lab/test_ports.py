from __future__ import annotations

import multiprocessing
import socket
from contextlib import closing

import pytest

from slurmmesh.errors import LabError
from slurmmesh.lab.ports import PortClaims, is_free, try_claim


def test_two_labs_never_get_the_same_port() -> None:
    with closing(PortClaims()) as one, closing(PortClaims()) as other:
        first, second = one.claim(100), other.claim(100)
        third = one.claim(40)
    assert len({*first, *second, *third}) == 240


def test_a_port_somebody_listens_on_is_not_given_out() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        assert not is_free(sock.getsockname()[1])
    assert is_free(sock_port := _free_port()), sock_port


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def test_a_claim_holds_until_it_is_closed() -> None:
    held = try_claim("test", 7)
    assert held is not None
    assert try_claim("test", 7) is None
    held.close()
    again = try_claim("test", 7)
    assert again is not None
    again.close()


def _hold(number: int, ready: multiprocessing.connection.Connection) -> None:
    claim = try_claim("test", number)
    ready.send(claim is not None)
    ready.recv()


def test_a_claim_dies_with_its_process() -> None:
    spawn = multiprocessing.get_context("fork")
    here, there = spawn.Pipe()
    holder = spawn.Process(target=_hold, args=(8, there))
    holder.start()
    try:
        assert here.recv() is True
        assert try_claim("test", 8) is None
    finally:
        holder.kill()
        holder.join()
        holder.close()
        here.close()
        there.close()
    freed = try_claim("test", 8)
    assert freed is not None
    freed.close()


@pytest.mark.slow
def test_too_many_ports_are_refused() -> None:
    with closing(PortClaims()) as claims, pytest.raises(LabError, match="no 70000 free"):
        claims.claim(70000)

"""What travels over a socket when memory is exported: any descriptor will do for that."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import FrameError, LinkClosed, UsageError
from slurmmesh.gpu import ExportedMemory, MemoryDescription

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    left, right = socket.socketpair()
    with left, right:
        yield left, right


def description(extents: int = 1) -> MemoryDescription:
    return MemoryDescription("rocm", "GPU-1", tuple(range(1, extents + 1)), rdma=True)


def exported(extents: int = 1) -> ExportedMemory:
    fds = []
    for number in range(extents):
        fds.append(os.memfd_create("test"))
        os.write(fds[-1], str(number).encode())
    return ExportedMemory(description(extents), tuple(fds))


@pytest.mark.parametrize("extents", [1, 2, 253, 254, 400])
def test_descriptors_arrive_in_order(pair: Pair, extents: int) -> None:
    left, right = pair
    with exported(extents) as sent:
        sending = threading.Thread(target=sent.send, args=(left,))
        sending.start()
        with ExportedMemory.receive(right) as received:
            sending.join()
            assert received.description == sent.description
            for number, fd in enumerate(received.fds):
                assert os.pread(fd, 10, 0) == str(number).encode()
                assert not os.get_inheritable(fd)


def test_one_after_the_other(pair: Pair) -> None:
    left, right = pair
    for _ in range(3):
        with exported(2) as sent:
            sent.send(left)
        ExportedMemory.receive(right).close()
    left.close()
    with pytest.raises(LinkClosed):
        ExportedMemory.receive(right)


SIZES = st.lists(st.integers(1, 1 << 40), min_size=1, max_size=20).map(tuple)


@given(st.builds(MemoryDescription, st.text(), st.text(), SIZES, st.booleans()))
def test_a_description_is_plain_data(one: MemoryDescription) -> None:
    assert MemoryDescription.from_dict(json.loads(json.dumps(one.to_dict()))) == one


GOOD = description().to_dict()
WRONG: list[Any] = [
    None,
    [],
    {},
    GOOD | {"more": 1},
    {name: value for name, value in GOOD.items() if name != "rdma"},
    *(GOOD | {"extents": wrong} for wrong in ([], [0], [-1], [1.5], [True], ["1"], None, 7)),
    GOOD | {"extents": [1 << 63]},
    GOOD | {"platform": 1},
    GOOD | {"rdma": 1},
]


@pytest.mark.parametrize("wrong", WRONG, ids=str)
def test_other_data_is_refused(wrong: Any) -> None:
    with pytest.raises(FrameError):
        MemoryDescription.from_dict(wrong)


NAMES = st.sampled_from([*GOOD]) | st.text()


@pytest.mark.slow
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from([*GOOD]) | st.text(), inner)
        ),
    )
)
def test_any_data_is_read_or_refused(data: Any) -> None:
    with contextlib.suppress(FrameError):
        assert MemoryDescription.from_dict(data).extents


def framed(text: bytes) -> bytes:
    return struct.pack(">Q", len(text)) + text


@pytest.mark.parametrize(
    "sent",
    [
        b"\xff" * 8,
        struct.pack(">Q", (1 << 20) + 1),
        framed(b""),
        framed(b"{}"),
        framed(b"\xff"),
        framed(b"[" * 100_000),
        framed(b"9" * 10_000),
        framed(json.dumps(GOOD).encode()) + b"\0",  # without a descriptor
    ],
    ids=lambda sent: f"{sent[:20]!r}",
)
def test_strange_bytes_are_refused(pair: Pair, sent: bytes) -> None:
    left, right = pair
    right.settimeout(60)
    left.sendall(sent)
    with pytest.raises(FrameError):
        ExportedMemory.receive(right)


@pytest.mark.parametrize("length", [0, 5, 20])
def test_an_end_in_the_middle(pair: Pair, length: int) -> None:
    left, right = pair
    left.sendall(framed(json.dumps(GOOD).encode())[:length] if length else framed(b"")[:0])
    left.close()
    with pytest.raises(LinkClosed):
        ExportedMemory.receive(right)


def test_more_descriptors_than_extents_are_closed(pair: Pair) -> None:
    left, right = pair
    left.sendall(framed(json.dumps(GOOD).encode()))
    socket.send_fds(left, [b"\0"], [left.fileno(), right.fileno()])
    with pytest.raises(FrameError, match="2 descriptors came for 1"):
        ExportedMemory.receive(right)


def test_no_room_for_descriptors(pair: Pair) -> None:
    left, right = pair
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with exported(4) as sent:
        sent.send(left)
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, hard))
        try:
            fillers = _fill()
            os.close(fillers.pop())
            with pytest.raises(FrameError, match="ulimit"):
                ExportedMemory.receive(right)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fillers:
                os.close(fd)


def _fill() -> list[int]:
    """All descriptors that this process may still open."""
    fds = []
    while True:
        try:
            fds.append(os.dup(0))
        except OSError:
            return fds


def test_wrong_sockets(pair: Pair) -> None:
    with (
        exported() as one,
        socket.socket() as tcp,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams,
    ):
        for wrong in (tcp, datagrams):
            with pytest.raises(UsageError, match="AF_UNIX"):
                one.send(wrong)
        pair[0].setblocking(False)
        with pytest.raises(UsageError, match="block"):
            ExportedMemory.receive(pair[0])


def test_descriptors_close_once() -> None:
    one = exported(2)
    assert not one.closed
    one.close()
    other = os.dup(0)  # takes the number of one of them
    one.close()
    assert one.closed
    assert "closed" in repr(one)
    os.close(other)


def test_a_descriptor_that_was_closed_keeps_no_other_open() -> None:
    one = exported(3)
    os.close(one.fds[1])
    one.close()
    for fd in one.fds:
        with pytest.raises(OSError, match="Bad file"):
            os.fstat(fd)

"""Who runs a loop when: a thread that waits, or the one in the background."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from slurmmesh.wire.driver import Driver
from slurmmesh.wire.reactor import READ, Reactor, in_loop_thread


class Flag:
    """Something that is waited for; see ``Awaited``."""

    def __init__(self) -> None:
        self.is_set = False

    def done(self) -> bool:
        return self.is_set

    def add_waker(self, wake: Callable[[], Any]) -> None:
        """Only the loop sets it."""

    def remove_waker(self, wake: Callable[[], Any]) -> None:
        """See above."""


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver(Reactor(), "test-driver")
    driver.start()
    yield driver
    driver.stop()


@pytest.fixture
def left_alone(driver: Driver, wait_until: Any) -> Driver:
    """A driver whose background sleeps, and whom nobody leads any more."""
    flag = Flag()
    leader = threading.Thread(target=driver.wait, args=(flag,))
    leader.start()
    wait_until(lambda: driver._asleep)

    def set_flag() -> None:
        flag.is_set = True

    driver.reactor.call_soon(set_flag)
    leader.join()
    return driver


def test_the_background_sleeps_while_somebody_leads_and_reads_what_comes_then(
    left_alone: Driver, wait_until: Any
):
    reactor = left_alone.reactor
    assert left_alone._asleep
    ours, theirs = socket.socketpair()
    came: list[tuple[bytes, bool]] = []
    with ours, theirs:
        reactor.call_soon(
            reactor.watch,
            ours.fileno(),
            READ,
            lambda _events: came.append((ours.recv(10), in_loop_thread())),
        )
        theirs.send(b"hello")
        wait_until(lambda: came)
        reactor.call_soon(reactor.unwatch, ours.fileno())
        wait_until(lambda: ours.fileno() not in reactor._watched)
    assert came == [(b"hello", True)]
    assert not in_loop_thread()


def test_what_is_to_be_done_before_a_wait_is_done_though_nobody_waits(
    left_alone: Driver, wait_until: Any
):
    done: list[int] = []
    left_alone.reactor.before_wait(lambda: done.append(1))
    wait_until(lambda: done)


def test_a_timer_fires_though_nobody_leads(driver: Driver, wait_until: Any):
    reactor, fired = driver.reactor, []
    flag = Flag()
    leader = threading.Thread(target=driver.wait, args=(flag,))
    leader.start()
    wait_until(lambda: driver._asleep)

    def leave_a_timer() -> None:
        reactor.call_later(0.01, lambda: fired.append(1))
        flag.is_set = True

    reactor.call_soon(leave_a_timer)
    leader.join()
    wait_until(lambda: fired)


def test_it_ends_while_the_background_sleeps(left_alone: Driver):
    left_alone.stop()
    assert left_alone._thread is not None
    assert not left_alone._thread.is_alive()


def test_a_child_process_has_no_part_in_it(left_alone: Driver):
    pid = os.fork()
    if pid == 0:
        os._exit(int(left_alone._asleep or not left_alone._news.closed or in_loop_thread()))
    assert os.waitpid(pid, 0)[1] == 0

"""The loop: descriptors, timers in order, calls from other threads, callbacks that raise."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

import pytest

from slurmmesh.wire import READ, Reactor


def test_timers_fire_in_order_and_not_when_cancelled():
    clock = [0.0]
    reactor = Reactor(clock=lambda: clock[0])
    fired: list[str] = []
    reactor.call_later(0.0, lambda: fired.append("second"))
    reactor.call_later(-1.0, lambda: fired.append("first"))
    reactor.call_later(0.0, lambda: fired.append("cancelled")).cancel()
    reactor.call_later(0.0, reactor.stop)
    reactor.run()
    assert fired == ["first", "second"]


def test_calls_of_other_threads_wake_it_and_run_in_its_thread():
    reactor = Reactor()
    thread = threading.Thread(target=reactor.run)
    thread.start()
    ran = threading.Event()
    where: list[bool] = []
    reactor.call_soon(lambda: (where.append(reactor.in_thread), ran.set()))
    assert ran.wait(10)
    reactor.stop()
    thread.join(10)
    assert where == [True]
    reactor.call_soon(lambda: None)  # after its end: no effect, no error


def test_a_callback_that_raises_is_reported_and_the_loop_goes_on():
    errors: list[str] = []
    reactor = Reactor(on_error=lambda: errors.append("seen"))
    reactor.call_soon(lambda: 1 / 0)
    reactor.call_soon(reactor.stop)
    reactor.run()
    assert errors == ["seen"]


def test_a_descriptor_is_watched_until_it_is_not():
    reactor = Reactor()
    read, write = os.pipe()
    got: list[bytes] = []

    def ready(_events: int) -> None:
        got.append(os.read(read, 10))
        if len(got) == 2:
            reactor.unwatch(read)
            reactor.stop()
        os.write(write, b"y")

    reactor.watch(read, READ, ready)
    os.write(write, b"x")
    reactor.run()
    assert got == [b"x", b"y"]
    for fd in (read, write):
        os.close(fd)


def test_a_callback_that_wants_to_end_the_process_does_not_end_the_loop():
    errors: list[str] = []
    reactor = Reactor(on_error=lambda: errors.append("seen"))
    reactor.call_soon(sys.exit)
    reactor.call_soon(reactor.stop)
    reactor.run()
    assert errors == ["seen"]


def test_news_of_a_descriptor_that_was_closed_in_the_same_turn_are_dropped():
    reactor = Reactor()
    pipes = [os.pipe() for _ in range(2)]
    called: list[int] = []

    def close_the_other(mine: int, other: int) -> None:
        called.append(mine)
        reactor.unwatch(mine)
        reactor.unwatch(other)
        reactor.watch(other, READ, lambda _events: called.append(-1))  # another one, same number
        reactor.stop()

    for (mine, write), (other, _) in (pipes, pipes[::-1]):
        reactor.watch(mine, READ, lambda _events, m=mine, o=other: close_the_other(m, o))
        os.write(write, b"x")
    reactor.run()
    assert called in ([pipes[0][0]], [pipes[1][0]])
    for fd in (*pipes[0], *pipes[1]):
        os.close(fd)


def test_a_timer_beyond_what_the_kernel_can_wait_for_is_harmless():
    reactor = Reactor()
    reactor.call_later(1e15, lambda: None)
    ran: list[bool] = []
    threading.Thread(target=lambda: (ran.append(True), reactor.stop())).start()
    reactor.run()
    assert ran == [True]


@pytest.mark.parametrize("way", ["call_soon", "before_wait", "call_later"])
def test_what_a_signal_handler_interrupts_is_run_again_before_all_else(way):
    reactor = Reactor()
    reactor.raising = True
    ran: list[str] = []

    def interrupted() -> None:
        ran.append("first")
        if len(ran) < 3:
            raise KeyboardInterrupt

    for callback in (interrupted, lambda: ran.append("second")):
        if way == "call_later":
            reactor.call_later(0.0, callback)
        else:
            getattr(reactor, way)(callback)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            reactor.turn(0)
    reactor.turn(0)
    reactor.turn(0)
    assert ran == ["first", "first", "first", "second"]
    reactor.close()


@pytest.mark.parametrize("way", ["call_soon", "before_wait", "call_later"])
def test_a_callback_that_always_raises_does_not_do_so_for_ever(way):
    told: list[str] = []
    reactor = Reactor(on_error=lambda: told.append("reported"))
    reactor.raising = True
    if way == "call_later":
        reactor.call_later(0.0, lambda: 1 / 0)
    else:
        getattr(reactor, way)(lambda: 1 / 0)
    reactor.call_soon(told.append, "next")
    while len(told) < 2:
        with contextlib.suppress(ZeroDivisionError):
            reactor.turn(0)
    reactor.turn(0)
    assert sorted(told) == ["next", "reported"]
    reactor.close()


def test_a_timer_that_makes_an_earlier_one_fires_once():
    clock = [1.0]
    reactor = Reactor(clock=lambda: clock[0])
    fired: list[str] = []

    def first() -> None:
        fired.append("first")
        reactor.call_later(-1.0, lambda: fired.append("earlier"))

    reactor.call_later(0.0, first)
    reactor.turn(0)
    reactor.turn(0)
    assert fired == ["first", "earlier"]
    reactor.close()

"""The loop: descriptors, timers in order, calls from other threads, callbacks that raise."""

from __future__ import annotations

import os
import sys
import threading

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

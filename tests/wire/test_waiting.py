"""Who runs a loop: threads in turns, one in the background, asyncio; handlers that raise."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import resource
import signal
import socket
import threading
import time
import types
from collections.abc import Iterator

import pytest

from slurmmesh.actors.direct import DirectLink
from slurmmesh.actors.future import Future
from slurmmesh.errors import CallTimeout
from slurmmesh.wire import Frame, Kind, Link, Reactor, same_user
from slurmmesh.wire.batches import BatchLink
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.spinning import Spinner


class Echo:
    """The other side: answers calls over a link with what it was asked, in a thread of its own."""

    def __init__(self, sock: socket.socket) -> None:
        self.reactor = Reactor()
        self.held: list[tuple[int, object]] = []
        self.link = BatchLink(
            self.reactor,
            sock,
            authenticate=same_user,
            on_frame=self._on_frame,
            on_batch=self._on_batch,
        )
        self.reactor.call_soon(self.link.start)
        self.thread = threading.Thread(target=self.reactor.run)
        self.thread.start()

    def _on_batch(self, _link: object, _kind: Kind, body: bytes) -> None:
        for number, _actor, method, args, _where in loads(body):
            if method == "hold":
                self.held.append((number, args[0]))
            else:
                self.link.add(Kind.RESULTS, (number, args[0]))
        self.link.flush()

    def _on_frame(self, link: Link, frame: Frame) -> None:
        if frame.kind is Kind.CALLS:
            self._on_batch(link, frame.kind, bytes(frame.body))
        elif frame.kind is Kind.CALL:
            self.link.post(Frame(Kind.RESULT, frame.body, frame.buffers, frame.call))

    def release(self) -> None:
        """Answer what is held. From any thread."""

        def answer() -> None:
            for number, value in self.held:
                self.link.add(Kind.RESULTS, (number, value))
            self.held.clear()
            self.link.flush()

        self.reactor.call_soon(answer)

    def close(self) -> None:
        self.reactor.stop()
        self.thread.join(10)
        self.link._shut("the test is over")


class Calling:
    """Our side: a driver, and a direct link that it drives."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        self.echo = Echo(theirs)
        self.driver = Driver(Reactor(), "driver-under-test")
        self.broken: list[str] = []
        up = threading.Event()
        self.link = DirectLink(
            self.driver,
            ours,
            same_user,
            on_down=lambda _link, reason: self.broken.append(reason),
            on_up=lambda _link: up.set(),
        )
        self.driver.reactor.call_soon(self.link.start)
        self.driver.start()
        assert up.wait(10)

    def call(self, value: object, method: str = "echo") -> Future[object]:
        future: Future[object] = Future("the call", self.driver)
        self.link.call_plain(1, method, (value,), None, future)
        return future

    def call_large(self, value: object) -> Future[object]:
        future: Future[object] = Future("the call", self.driver)
        body, buffers = dumps(value)
        self.link.send_message(Frame(Kind.CALL, body, buffers), future)
        return future

    def close(self) -> None:
        self.driver.stop()
        self.link._shut("the test is over")
        self.echo.close()


@pytest.fixture
def calling() -> Iterator[Calling]:
    made = Calling()
    yield made
    made.close()


def test_one_thread_reads_its_own_answers(calling):
    assert [calling.call(n).get(20) for n in range(300)] == list(range(300))


def test_many_threads_wait_for_many_futures_and_each_gets_its_own(calling):
    wrong: list[object] = []

    def work(number: int) -> None:
        chance = random.Random(number)
        for index in range(150):
            value = (number, index)
            future = calling.call(value)
            if chance.random() < 0.3:
                later = [calling.call((number, index, n)) for n in range(5)]
                wrong.extend(
                    n for n, each in enumerate(later) if each.get(30) != (number, index, n)
                )
            if chance.random() < 0.2:
                with contextlib.suppress(CallTimeout):
                    future.get(0)
            if future.get(30) != value:
                wrong.append(value)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert wrong == []
    assert calling.link.is_quiet


def test_one_future_awaited_by_many_threads(calling):
    future = calling.call("same", "hold")
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(future.get(30))) for _ in range(12)]
    for thread in threads:
        thread.start()
    calling.call(0).get(20)  # so it is there
    calling.echo.release()
    for thread in threads:
        thread.join(30)
    assert got == ["same"] * 12


def test_who_waits_in_vain_hands_the_lead_on(calling):
    """The leader's timeout ends while others wait for answers that come later."""
    first = calling.call("never", "hold")
    second = calling.call("late", "hold")
    got: list[object] = []
    leader = threading.Thread(target=lambda: got.append(type(first.exception(0.3))))
    followers = [threading.Thread(target=lambda: got.append(second.get(30))) for _ in range(3)]
    leader.start()
    for follower in followers:
        follower.start()
    leader.join(30)
    assert got == [CallTimeout]
    calling.echo.release()
    for follower in followers:
        follower.join(30)
    assert got == [CallTimeout, "late", "late", "late"]


def test_answers_come_though_nobody_waits(calling, wait_until):
    futures = [calling.call(n) for n in range(50)]
    wait_until(lambda: all(future.done() for future in futures))


def test_callbacks_are_told_though_a_thread_goes_on_sending(calling):
    told = threading.Event()
    calling.call(0).add_done_callback(lambda _future: told.set())
    deadline = time.monotonic() + 20
    while not told.is_set():
        calling.call(1)
        assert time.monotonic() < deadline


def test_a_callback_is_told_by_the_background(calling):
    told = threading.Event()
    calling.call(1).add_done_callback(lambda _future: told.set())
    assert told.wait(20)


def test_threads_and_an_event_loop_wait_side_by_side(calling):
    wrong: list[object] = []
    stop = threading.Event()

    def work(number: int) -> None:
        index = 0
        while not stop.is_set():
            index += 1
            if calling.call((number, index)).get(30) != (number, index):
                wrong.append((number, index))

    async def tasks() -> list[object]:
        async def one(number: int) -> None:
            for index in range(60):
                if await calling.call(("task", number, index)) != ("task", number, index):
                    wrong.append(("task", number, index))

        return await asyncio.gather(*(one(number) for number in range(5)))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    asyncio.run(asyncio.wait_for(tasks(), 60))
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert wrong == []


def test_event_loops_in_several_threads(calling):
    async def one(number: int) -> bool:
        return all([await calling.call((number, n)) == (number, n) for n in range(60)])

    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda number=number: results.append(asyncio.run(one(number))))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 4


def test_a_task_that_is_cancelled_leaves_the_loop_to_others(calling):
    async def main() -> object:
        held = calling.call("held", "hold")
        task = asyncio.ensure_future(held)
        await asyncio.sleep(0)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        calling.echo.release()
        return await held

    assert asyncio.run(main()) == "held"
    assert calling.call(1).get(20) == 1


def test_stopping_while_threads_wait_leaves_them_to_their_futures(calling):
    future = calling.call("never", "hold")
    got: list[object] = []
    threads = [threading.Thread(target=lambda: got.append(future.get(30))) for _ in range(4)]
    for thread in threads:
        thread.start()
    calling.driver.stop()
    future.set_result("ended")
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert got == ["ended"] * 4


def test_waiting_after_the_stop_ends_by_its_timeout(calling):
    future = calling.call("never", "hold")
    calling.driver.stop()
    with pytest.raises(CallTimeout):
        future.get(0.01)


def test_an_idle_loop_does_nothing(calling):
    """No turn is run and no thread is woken while there is no news."""
    for n in range(20):
        calling.call(n).get(20)
    turns, switches = _when_quiet(calling.driver.reactor)
    time.sleep(0.3)
    assert calling.driver.reactor.turns - turns <= 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches < 30


def test_the_background_sleeps_while_a_thread_leads_without_news(calling):
    future = calling.call("held", "hold")
    thread = threading.Thread(target=future.get, args=(30,))
    thread.start()
    turns, switches = _when_quiet(calling.driver.reactor)
    time.sleep(0.3)
    assert calling.driver.reactor.turns - turns <= 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - switches < 30
    calling.echo.release()
    thread.join(30)


def _when_quiet(reactor: Reactor) -> tuple[int, int]:
    """Turns and voluntary context switches, once no turn was run for a while."""
    seen = -1
    while seen != reactor.turns:
        seen = reactor.turns
        time.sleep(0.1)
    return seen, resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw


class Interrupt(BaseException):
    """What a signal handler raises."""


_OURS = ("slurmmesh/wire/", "slurmmesh/actors/")


class Alarms:
    """One alarm at a time: a handler raises at any moment, but not again while that is handled."""

    def __init__(self) -> None:
        self.raised = 0
        self._armed = False

    def __call__(self, _signum: int, frame: types.FrameType | None) -> None:
        # In our code only: in a test's own it would prove nothing.
        ours = frame is not None and any(part in frame.f_code.co_filename for part in _OURS)
        if self._armed and ours:
            self._armed = False
            self.raised += 1
            raise Interrupt

    def arm(self) -> None:
        self._armed = True

    def through(self, step):
        """What ``step()`` gives, however often it is interrupted."""
        while True:
            self.arm()
            with contextlib.suppress(Interrupt):
                value = step()
                self._armed = False
                return value


@contextlib.contextmanager
def alarms(handler, interval: float) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, interval, interval)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("others", [0, 3])
@pytest.mark.parametrize("large", [False, True])
def test_a_handler_that_raises_in_a_leader_loses_no_answer_and_no_later_call(
    calling, others, large
):
    stop = threading.Event()
    wrong: list[object] = []

    def work(number: int) -> None:
        index = 0
        while not stop.is_set():
            index += 1
            if calling.call((number, index)).get(30) != (number, index):
                wrong.append((number, index))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(others)]
    for thread in threads:
        thread.start()
    alarm = Alarms()
    asked = [calling.call_large(bytes([n]) * 50_000) for n in range(60)] if large else []
    with alarms(alarm, 0.0003):
        for n in range(400):
            future = alarm.through(lambda n=n: calling.call(n))
            assert alarm.through(lambda future=future: future.get(30)) == n
        for n, future in enumerate(asked):
            answer = alarm.through(lambda future=future: future.get(30))
            assert answer == bytes([n]) * 50_000
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert wrong == []
    assert alarm.raised
    assert [calling.call(n).get(20) for n in range(50)] == list(range(50))
    assert calling.broken == []


def test_a_handler_may_call_and_wait_itself_but_not_in_the_middle_of_a_send(calling):
    inner: list[object] = []

    def handler(_signum: int, frame: types.FrameType | None) -> None:
        if frame is None or frame.f_code not in (Reactor.turn.__code__, Spinner.wait.__code__):
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        inner.append(calling.call("inner").get(20))

    for n in range(30):
        held = calling.call(n, "hold")
        with alarms(handler, 0.005):
            assert isinstance(held.exception(0.02), CallTimeout)
        calling.echo.release()
        assert held.get(20) == n
    assert inner
    assert set(inner) == {"inner"}


def test_the_loop_may_be_stopped_by_a_handler_that_interrupts_a_wait(calling):
    future = calling.call("never", "hold")

    def handler(_signum: int, _frame: types.FrameType | None) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        calling.driver.stop()
        future.set_result("stopped")

    with alarms(handler, 0.05):
        assert future.get(30) == "stopped"


def test_a_forked_child_leaves_the_loop_alone(calling):
    calling.call(0).get(20)
    pid = os.fork()
    if pid == 0:
        code = 1
        with contextlib.suppress(BaseException):
            calling.call(1)
        with contextlib.suppress(BaseException):
            code = 0 if calling.link.closed else 2
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert [calling.call(n).get(20) for n in range(20)] == list(range(20))

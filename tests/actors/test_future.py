"""Futures: asked by many, awaited, timed out, settled once."""

from __future__ import annotations

import asyncio
import functools
import itertools
import sys
import threading

import pytest

from slurmmesh.actors import Future
from slurmmesh.errors import CallTimeout
from slurmmesh.wire import Reactor
from tests.actors.interrupts import interrupt


def test_a_timeout_does_not_spoil_it():
    future: Future[int] = Future("the step")
    with pytest.raises(CallTimeout, match="the step"):
        future.get(0.0)
    assert isinstance(future.exception(0.0), CallTimeout)
    future.set_result(3)
    assert future.get() == 3
    assert future.exception() is None


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_a_timeout_that_is_none_is_refused(timeout: float):
    with pytest.raises(ValueError, match="timeout"):
        Future().get(timeout)


def test_every_thread_that_asks_gets_the_error():
    future: Future[int] = Future()
    seen: list[BaseException | None] = []
    threads = [threading.Thread(target=lambda: seen.append(future.exception(10))) for _ in range(8)]
    for thread in threads:
        thread.start()
    error = KeyError("k")
    future.set_exception(error)
    future.set_result(1)
    for thread in threads:
        thread.join()
    assert seen == [error] * 8
    for _ in range(2):
        with pytest.raises(KeyError):
            future.get()


def test_it_can_be_awaited_twice_and_from_two_tasks():
    future: Future[str] = Future()

    async def ask() -> list[str]:
        tasks = [asyncio.create_task(_await(future)) for _ in range(2)]
        await asyncio.sleep(0)
        threading.Thread(target=future.set_result, args=("x",)).start()
        return [*await asyncio.gather(*tasks), await future]

    assert asyncio.run(ask()) == ["x", "x", "x"]


async def _await(future: Future[str]) -> str:
    return await future


def test_a_cancelled_waiter_leaves_the_future_usable():
    future: Future[str] = Future()

    async def cancel() -> None:
        task = asyncio.create_task(_await(future))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(cancel())
    future.set_result("late")
    assert future.get() == "late"


def test_a_callback_that_raises_stops_neither_the_others_nor_the_settling(capsys):
    future: Future[int] = Future()
    seen: list[int] = []
    future.add_done_callback(lambda _: 1 / 0)
    future.add_done_callback(lambda done: seen.append(done.get()))
    future.set_result(3)
    assert seen == [3]
    assert "ZeroDivisionError" in capsys.readouterr().err


@pytest.mark.parametrize("error", [None, KeyError("lost")])
def test_wherever_a_handler_interrupts_all_but_who_it_hits_are_woken_in_the_end(error):
    for step in itertools.count():
        future: Future[int] = Future()
        woken: list[int] = []
        for number in range(3):
            future.add_waker(functools.partial(woken.append, number))

        def settle(future: Future[int] = future) -> None:
            if error is None:
                future.set_result(1)
            else:
                future.set_exception(error)

        is_over = False
        try:
            with interrupt(sys.modules[Future.__module__].__file__ or "", step):
                settle()
                is_over = True
        except KeyboardInterrupt:
            settle()
        assert future.exception(0) is error
        assert len(woken) >= (3 if is_over else 2)
        assert len(set(woken)) == len(woken)
        if is_over:
            break
    assert step > 5
    free = threading.Thread(target=Future().set_result, args=(1,), daemon=True)
    free.start()
    free.join(10)
    assert not free.is_alive()


def test_waiting_in_the_thread_that_brings_answers_is_an_error_not_a_hang():
    reactor = Reactor()
    errors: list[BaseException | None] = []
    future: Future[int] = Future("the step")

    def wait_in_callback() -> None:
        try:
            future.get()
        except RuntimeError as error:
            errors.append(error)
        reactor.stop()

    reactor.call_soon(wait_in_callback)
    reactor.run()
    assert "the step" in str(errors[0])


def test_an_error_does_not_bring_along_what_was_handled_when_it_was_raised_before():
    future: Future[int] = Future()
    future.set_exception(ValueError("the error"))
    try:
        raise KeyError("handled meanwhile")
    except KeyError:
        with pytest.raises(ValueError, match="the error") as caught:
            future.get()
        assert isinstance(caught.value.__context__, KeyError)
    with pytest.raises(ValueError, match="the error") as caught:
        future.get()
    assert caught.value.__context__ is None

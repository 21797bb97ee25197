"""Endpoints that answer on a port, and those that run beside later messages."""

from __future__ import annotations

import asyncio
import queue
import threading
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.errors import ActorError, SupervisionError


class Answering(sm.Actor):
    def __init__(self) -> None:
        self.ports: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.log: list[str] = []

    @sm.endpoint(explicit_response_port=True)
    def at_once(self, port: sm.Port[int], value: int) -> int:
        port.send(value + sm.current_rank().rank)
        return -1  # counts for nothing

    @sm.endpoint(explicit_response_port=True)
    async def at_once_async(self, port: sm.Port[int], value: int) -> None:
        await asyncio.sleep(0)
        port.send(value)

    @sm.endpoint(explicit_response_port=True)
    def in_a_thread(self, port: sm.Port[str]) -> None:
        threading.Thread(target=lambda: port.send("from a thread")).start()

    @sm.endpoint(explicit_response_port=True)
    def keep(self, port: sm.Port[int]) -> None:
        self.ports.put(port)

    @sm.endpoint
    def answer_all(self, value: int) -> int:
        count = 0
        while not self.ports.empty():
            self.ports.get().send(value + count)
            count += 1
        return count

    @sm.endpoint
    def drop_all(self) -> None:
        while not self.ports.empty():
            self.ports.get()

    @sm.endpoint(explicit_response_port=True)
    def fails_on_port(self, port: sm.Port[int]) -> None:
        port.exception(KeyError("k"))

    @sm.endpoint(explicit_response_port=True)
    def raises(self, port: sm.Port[int], first: bool) -> None:
        if first:
            port.send(1)
        raise ValueError("it escaped")

    @sm.endpoint(explicit_response_port=True)
    def twice(self, port: sm.Port[Any]) -> None:
        port.send(1)
        try:
            port.send(2)
        except ValueError as error:
            self.log.append(str(error))

    @sm.endpoint(explicit_response_port=True)
    def unpicklable(self, port: sm.Port[Any]) -> None:
        port.send(threading.Lock())

    @sm.endpoint
    def logged(self) -> list[str]:
        return self.log


class Beside(sm.Actor):
    def __init__(self) -> None:
        self.begun: list[str] = []
        self.gate = asyncio.Event()

    @sm.concurrent_endpoint
    async def wait(self, name: str) -> tuple[str, int]:
        self.begun.append(name)
        await self.gate.wait()
        return name, sm.current_rank().rank

    @sm.concurrent_endpoint(explicit_response_port=True)
    async def wait_on_port(self, port: sm.Port[str], name: str) -> None:
        await self.gate.wait()
        port.send(name)

    @sm.concurrent_endpoint
    async def quick(self, value: int) -> int:
        return value

    @sm.concurrent_endpoint
    async def sleep(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "slept"

    @sm.endpoint
    def note(self, name: str) -> list[str]:
        self.begun.append(name)
        return self.begun

    @sm.endpoint
    async def open(self) -> int:
        self.gate.set()
        return len(self.begun)

    @sm.concurrent_endpoint
    async def raises(self) -> None:
        await asyncio.sleep(0)
        raise ValueError("beside")

    @sm.concurrent_endpoint(explicit_response_port=True)
    async def escapes(self, port: sm.Port[int]) -> None:
        await asyncio.sleep(0)
        raise ValueError("it escaped")

    @sm.concurrent_endpoint
    async def cancels_itself(self) -> None:
        raise asyncio.CancelledError("by itself")

    async def __cleanup__(self, error: BaseException | None) -> None:
        await asyncio.sleep(0)
        print("cleaned up", len(asyncio.all_tasks()))


@pytest.fixture(scope="module")
def procs(hosts: sm.HostMesh, link_up) -> sm.ProcMesh:
    made = hosts.spawn_procs({"gpus": 2}, name="responses")
    link_up(made.spawn("first", Answering), "logged")
    return made


@pytest.fixture
def answering(procs: sm.ProcMesh) -> sm.ActorMesh:
    return procs.spawn("answering", Answering)


@pytest.fixture
def beside(procs: sm.ProcMesh) -> sm.ActorMesh:
    return procs.spawn("beside", Beside)


def test_an_answer_on_the_port_is_the_answer_of_the_call(answering):
    one = answering.slice(gpus=1)
    assert answering.at_once.call(4).get(60).values() == [4, 5]
    assert one.at_once.call_one(value=7).get(60) == 7
    assert one.at_once_async.call_one(8).get(60) == 8
    assert one.in_a_thread.call_one().get(60) == "from a thread"
    answering.at_once.broadcast(1)
    with pytest.raises(TypeError):
        one.at_once.call_one(1, 2)
    with pytest.raises(TypeError):
        one.at_once.call_one()


def test_answers_may_come_later_and_in_any_order(answering):
    one = answering.slice(gpus=0)
    futures = [one.keep.call_one() for _ in range(3)]
    assert one.answer_all.call_one(10).get(60) == 3
    assert [future.get(60) for future in futures] == [10, 11, 12]


def test_a_port_that_is_dropped_unanswered_fails_its_call(answering):
    one = answering.slice(gpus=0)
    future = one.keep.call_one()
    one.drop_all.call_one().get(60)
    with pytest.raises(ActorError, match="dropped its port unanswered") as caught:
        future.get(60)
    assert caught.value.rank == 0
    assert one.logged.call_one().get(60) == []


def test_an_error_on_the_port_is_raised_as_it_is(answering):
    with pytest.raises(KeyError, match="k"):
        answering.fails_on_port.call().get(60)
    one = answering.slice(gpus=0)
    with pytest.raises(KeyError, match="k"):
        one.fails_on_port.call_one().get(60)
    with pytest.raises(ActorError, match="cannot be sent"):
        one.unpicklable.call_one().get(60)
    assert one.at_once.call_one(1).get(60) == 1


def test_a_call_takes_one_answer(answering):
    one = answering.slice(gpus=0)
    assert one.twice.call_one().get(60) == 1
    assert "takes one message" in one.logged.call_one().get(60)[0]


def test_an_error_that_escapes_fails_the_actor(answering):
    one, other = answering.slice(gpus=0), answering.slice(gpus=1)
    with pytest.raises(SupervisionError, match="it escaped"):
        one.raises.call_one(first=False).get(60)
    with pytest.raises(SupervisionError, match="it escaped"):
        one.at_once.call_one(1).get(60)
    assert other.raises.call_one(first=True).get(60) == 1
    with pytest.raises(SupervisionError, match="it escaped"):
        other.at_once.call_one(1).get(60)


def test_concurrent_endpoints_let_later_messages_in(beside):
    waiting = [beside.wait.call(name) for name in "abc"]
    on_port = beside.wait_on_port.call("d")
    assert beside.note.call("note").get(60).values() == [[*"abc", "note"]] * 2
    assert not any(future.done() for future in waiting)
    assert beside.open.call().get(60).values() == [4, 4]
    assert [future.get(60).values() for future in waiting] == [
        [(name, 0), (name, 1)] for name in "abc"
    ]
    assert on_port.get(60).values() == ["d", "d"]


def test_the_first_actor_of_a_proc_runs_them_on_the_main_thread(hosts):
    procs = hosts.spawn_procs(name="main")
    beside = procs.spawn("beside", Beside)
    waiting = beside.wait.call("a")
    assert beside.sleep.call(0.01).get(60).values() == ["slept"]
    assert beside.open.call().get(60).values() == [1]
    assert waiting.get(60).values() == [("a", 0)]
    procs.stop().get(60)


def test_tasks_go_on_while_no_message_comes_and_while_many_do(beside):
    one = beside.slice(gpus=0)
    assert one.sleep.call_one(0.01).get(60) == "slept"
    sleeping = one.sleep.call_one(0.01)
    for value in range(200):
        assert one.quick.call_one(value).get(60) == value
    assert sleeping.get(60) == "slept"


def test_what_a_concurrent_endpoint_raises_fails_its_call_alone(beside):
    one = beside.slice(gpus=0)
    with pytest.raises(ActorError, match="beside"):
        one.raises.call_one().get(60)
    with pytest.raises(ActorError, match="Cancelled"):
        one.cancels_itself.call_one().get(60)
    assert one.quick.call_one(1).get(60) == 1


@pytest.mark.parametrize("name", ["escapes", "raises"])
def test_what_nobody_is_told_of_fails_the_actor(beside, name):
    one = beside.slice(gpus=0)
    waiting = one.wait.call_one("a")
    if name == "raises":
        one.raises.broadcast()
    else:
        with pytest.raises(SupervisionError, match="it escaped"):
            one.escapes.call_one().get(60)
    with pytest.raises(SupervisionError, match=r"it escaped|beside"):
        waiting.get(60)
    with pytest.raises(SupervisionError, match=r"it escaped|beside"):
        one.quick.call_one(1).get(60)
    assert beside.slice(gpus=1).quick.call_one(1).get(60) == 1


def test_what_runs_when_the_actor_stops_is_cancelled(hosts):
    procs = hosts.spawn_procs(name="stopped")
    beside = procs.spawn("beside", Beside)
    waiting = beside.wait.call("a")
    assert beside.note.call("b").get(60).values() == [["a", "b"]]
    procs.stop().get(60)
    with pytest.raises(SupervisionError):
        waiting.get(60)

"""Channels between processes: ports sent to actors, among actors, answered elsewhere."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slurmmesh as sm
from slurmmesh.errors import ActorError, CallTimeout, ProcDied

HOSTS = 2


class Node(sm.Actor):
    def __init__(self) -> None:
        self.port, self.receiver = sm.Channel.open()
        self.kept: list[Any] = []

    @sm.endpoint
    def own_port(self) -> sm.Port[Any]:
        return self.port

    @sm.endpoint
    def send(self, port: sm.Port[Any], value: Any, times: int = 1) -> None:
        for index in range(times):
            port.send((index, value) if times > 1 else value)

    @sm.endpoint
    def fail(self, port: sm.Port[Any]) -> None:
        port.exception(KeyError("k"))

    @sm.endpoint
    def send_own_class(self, port: sm.Port[Any], folder: str) -> None:
        import importlib
        import sys

        sys.path.insert(0, folder)
        error = importlib.import_module("only_in_actors").Own("no luck")
        port.exception(error)
        raise error

    @sm.endpoint
    def receive(self, timeout: float = 60) -> Any:
        return self.receiver.recv().get(timeout)

    @sm.endpoint
    async def receive_async(self) -> Any:
        return await self.receiver.recv()

    @sm.endpoint(explicit_response_port=True)
    def pass_on(self, port: sm.Port[Any], other: sm.Port[Any]) -> None:
        other.send(port)

    @sm.endpoint
    def answer_for_another(self, value: Any) -> None:
        port = self.receiver.recv().get(60)
        port.send(value)
        port.send("too late")

    @sm.endpoint
    def ask(self, other: sm.ActorMesh) -> Any:
        port, receiver = sm.Channel.open()
        other.send.broadcast(port, "asked")
        return receiver.recv().get(60)


@pytest.fixture(scope="module")
def procs(hosts: sm.HostMesh, link_up) -> sm.ProcMesh:
    made = hosts.spawn_procs({"gpus": 2}, name="nodes")
    link_up(made.spawn("first", Node), "own_port")
    return made


@pytest.fixture
def nodes(procs: sm.ProcMesh) -> sm.ActorMesh:
    return procs.spawn("nodes", Node)


def test_every_rank_sends_to_a_port_of_the_program(nodes):
    port, receiver = sm.Channel.open_ranked()
    nodes.send.broadcast(port, "hello")
    assert sorted(receiver.recv().get(60) for _ in range(4)) == [(n, "hello") for n in range(4)]
    nodes.slice(hosts=1).send.call(port, "again").get(60)
    assert sorted(receiver.recv().get(60) for _ in range(2)) == [(0, "again"), (1, "again")]


def test_one_sender_s_messages_arrive_in_order(nodes):
    port, receiver = sm.Channel.open()
    nodes.slice(hosts=0, gpus=1).send.broadcast(port, "x", 500)
    assert [receiver.recv().get(60)[0] for _ in range(500)] == list(range(500))


def test_the_program_sends_to_ports_of_actors(nodes):
    ports = nodes.own_port.call().get(60)
    for point, port in ports:
        port.send(point.rank)
        port.send(np.full(1 << 10, point.rank, dtype=np.uint8))
    assert nodes.receive.call().get(60).values() == [0, 1, 2, 3]
    assert [array[-1] for array in nodes.receive_async.call().get(60).values()] == [0, 1, 2, 3]


@pytest.mark.parametrize("there", [{"hosts": 0, "gpus": 1}, {"hosts": 1, "gpus": 1}])
def test_actors_send_to_each_other(nodes, there):
    one, other = nodes.slice(hosts=0, gpus=0), nodes.slice(**there)
    port = other.own_port.call_one().get(60)
    assert port == other.own_port.call_one().get(60)
    one.send.call_one(port, "from one").get(60)
    assert other.receive.call_one().get(60) == "from one"
    assert one.ask.call_one(other).get(60) == "asked"


def test_a_recv_in_an_actor_that_timed_out_takes_no_message(nodes):
    one = nodes.slice(hosts=1, gpus=0)
    error = one.receive.call_one(0.01).exception(60)
    assert isinstance(error, ActorError)
    assert isinstance(error.exception, CallTimeout)
    one.own_port.call_one().get(60).send("kept")
    assert one.receive.call_one().get(60) == "kept"


def test_errors_are_raised_as_they_are(nodes, tmp_path: Path):
    port, receiver = sm.Channel.open()
    one = nodes.slice(hosts=1, gpus=1)
    one.fail.call_one(port).get(60)
    with pytest.raises(KeyError, match="k"):
        receiver.recv().get(60)
    (tmp_path / "only_in_actors.py").write_text("class Own(Exception):\n    pass\n")
    error = one.send_own_class.call_one(port, str(tmp_path)).exception(60)
    for told in (error, receiver.recv().exception(60)):
        assert isinstance(told, ActorError)
        assert told.exception is None
        assert told.exception_type == "only_in_actors.Own"
        assert "no luck" in str(told)
        assert (told.actor, told.rank, told.host) == ("nodes", 3, "local1")


@pytest.mark.parametrize("there", [{"hosts": 0, "gpus": 1}, {"hosts": 1, "gpus": 0}])
def test_a_response_port_is_answered_by_another_actor(nodes, there):
    one, other = nodes.slice(hosts=0, gpus=0), nodes.slice(**there)
    future = one.pass_on.call_one(other.own_port.call_one().get(60))
    error = other.answer_for_another.call_one({"by": "another"}).exception(60)
    assert future.get(60) == {"by": "another"}
    assert "takes one message" in str(error)


def test_what_is_sent_to_the_dead_is_dropped(mortal):
    nodes = mortal.spawn("nodes", Node)
    one = nodes.slice(hosts=0, gpus=1)
    port = one.own_port.call_one().get(60)
    waiting = one.receive.call_one()
    mortal.send_signal(signal.SIGKILL, rank=1)
    assert isinstance(waiting.exception(60), ProcDied)
    port.send("to nobody")
    nodes.slice(hosts=1).send.call(port, "to nobody").get(60)
    port, receiver = sm.Channel.open()
    nodes.slice(hosts=1, gpus=0).send.call_one(port, "others go on").get(60)
    assert receiver.recv().get(60) == "others go on"


@pytest.mark.slow
def test_a_port_of_a_job_that_is_over_takes_messages_for_nobody():
    hosts = sm.local_hosts(1)
    try:
        procs = hosts.spawn_procs(name="over")
        port = procs.spawn("over", Node).flatten("all").own_port.call_one().get(60)
    finally:
        hosts.stop()
    port.send("to nobody")


def test_a_message_is_awaited_in_the_program(nodes):
    port, receiver = sm.Channel.open()

    async def run() -> list[Any]:
        nodes.send.broadcast(port, 7)
        return [await receiver.recv() for _ in range(4)]

    assert asyncio.run(run()) == [7] * 4

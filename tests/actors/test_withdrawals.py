"""Calls whose wait closed a circle are taken back: nobody runs them, nothing is left of them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slurmmesh as sm
from slurmmesh.actors import waits
from slurmmesh.actors.context import context
from slurmmesh.actors.cycles import Withdrawal, Withdrawn
from slurmmesh.actors.runtime import home
from slurmmesh.errors import CallCycle
from tests.actors.circles import PATIENCE_S, cycle_in, hasten

HOSTS = 2


@given(data=st.data(), count=st.integers(1, 6))
def test_a_call_taken_back_is_run_or_dropped_once_and_nothing_of_it_is_left(data, count):
    mailbox = [bytes([number]) for number in range(count)]
    run: list[bytes] = []
    dropped: list[bytes] = []

    def some_are_taken() -> None:
        for _ in range(data.draw(st.integers(0, 2))):
            if mailbox:
                mark = mailbox.pop(0)
                (run if withdrawn.take(mark) is None else dropped).append(mark)

    def queued() -> list[bytes]:
        """The actor may take calls just before this looks, and just after."""
        some_are_taken()
        found = list(mailbox)
        some_are_taken()
        return found

    withdrawn = Withdrawn(queued)
    back = data.draw(st.lists(st.sampled_from(mailbox), unique=True))
    must_drop = set()
    for mark in back:
        some_are_taken()
        withdrawn.add(Withdrawal(mark, CallCycle(("a[0].run", "a[0].run"))))
        must_drop |= {mark} & set(mailbox)
    for mark in mailbox:
        (run if withdrawn.take(mark) is None else dropped).append(mark)
    assert sorted(run + dropped) == [bytes([number]) for number in range(count)]
    assert must_drop <= set(dropped) <= set(back)
    assert not withdrawn.errors


class Node(sm.Actor):
    """Calls another in what that has called: a recursion without end."""

    def __init__(self) -> None:
        self.runs = 0

    @sm.endpoint
    def link(self, following: Any) -> None:
        self.following = following

    @sm.endpoint
    def run(self) -> Any:
        self.runs += 1
        return self.following.run.call_one().get()

    @sm.endpoint
    async def run_async(self) -> Any:
        self.runs += 1
        return await self.following.run_async.call_one()

    @sm.endpoint
    def run_all(self, mesh: Any) -> Any:
        return mesh.add.call().get()

    @sm.endpoint
    def add(self) -> None:
        self.runs += 1

    @sm.endpoint
    def stand(self, gate: Any) -> None:
        gate.pass_.call_one().get()

    @sm.endpoint
    def call_first(self, other: Any, port: Any) -> None:
        """Wait for another, who is told of that when it is called."""
        called = other.add.call_one()
        port.send(None)
        called.get()

    @sm.endpoint
    def stream_then(self, gate: Any, mesh: Any) -> list[str]:
        """Once the gate is open: what becomes of each of a stream."""
        gate.pass_.call_one().get()
        return [type(future.exception(30)).__name__ for future in mesh.add.stream()]

    @sm.endpoint
    def count(self) -> int:
        return self.runs

    @sm.endpoint
    def left(self) -> int:
        """Calls that are in the books here, those that this process made and those taken back."""
        here, own = home(), context().waits
        opened = 0 if here is None else _opened(here.caller)
        return opened + len(own.withdrawn.errors)


def _opened(caller: Any) -> int:
    places = [place for places in caller._places.values() for place in places.values()]
    return len(caller.book._open) + sum(len(each.link._open) for each in places if each.link)


class Gate(sm.Actor):
    """Lets nobody pass until it is opened."""

    def __init__(self) -> None:
        self.ports: list[Any] = []

    @sm.endpoint(explicit_response_port=True)
    def pass_(self, port: Any) -> None:
        self.ports.append(port)

    @sm.endpoint
    def waiting(self) -> int:
        return len(self.ports)

    @sm.endpoint
    def open(self) -> None:
        for port in self.ports:
            port.send(None)


@pytest.fixture(scope="module")
def node_mesh(hosts, link_up):
    """Four, on two hosts: ``nodes[0]`` and ``nodes[1]`` are neighbours."""
    made = hosts.spawn_procs({"n": 2}, name="nodes", bootstrap=hasten).spawn("node", Node)
    link_up(made, "count")
    return made


@pytest.fixture(scope="module")
def nodes(node_mesh):
    return [node_mesh.slice(hosts=host, n=n) for host in (0, 1) for n in (0, 1)]


@pytest.fixture
def gate(hosts):
    procs = hosts.slice(hosts=0).spawn_procs(name="gate")
    yield procs.spawn("gate", Gate)
    procs.stop().get(30)


def counts(members: Any) -> list[int]:
    """How often each has run; asked behind all that is in its mailbox."""
    return [member.count.call_one().get(30) for member in members]


def is_settled(members: Any) -> bool:
    return not any(member.left.call_one().get(30) for member in members)


def go_round(ring: Any, endpoint: str, wait_until: Any) -> None:
    """Three circles, one after the other: each member runs once in each, and nothing is left."""
    for member, following in zip(ring, [*ring[1:], ring[0]], strict=True):
        member.link.call_one(following).get(30)
    before = counts(ring)
    for circle in (1, 2, 3):
        error = getattr(ring[0], endpoint).call_one().exception(30)
        assert len(cycle_in(error).chain) == len(ring) + 1
        for _ in range(2):
            assert counts(ring) == [number + circle for number in before]
    wait_until(lambda: is_settled(ring))


@pytest.mark.parametrize("endpoint", ["run", "run_async"])
@pytest.mark.parametrize("ring", [[0], [0, 1], [0, 3], [1, 3, 2]])
def test_the_call_that_closed_a_circle_is_not_run(nodes, endpoint, ring, wait_until):
    go_round([nodes[number] for number in ring], endpoint, wait_until)


def test_nor_in_the_program_itself_or_from_there(nodes, here, monkeypatch, wait_until):
    monkeypatch.setattr(waits, "PATIENCE_S", PATIENCE_S)
    one = here.spawn("here", Node)
    for ring in ([one], [one, nodes[3]], [nodes[0], one]):
        go_round(ring, "run", wait_until)
    one.stop().get(30)


def test_nor_a_call_of_many_by_those_who_had_not_begun(gate, node_mesh, nodes, wait_until):
    before = counts(nodes)
    standing = nodes[2].stand.call_one(gate)
    wait_until(lambda: gate.waiting.call_one().get(30) == 1)
    error = nodes[0].run_all.call_one(node_mesh).exception(30)
    assert cycle_in(error).chain == ("node[0].run_all", "node[0].add")
    gate.open.call_one().get(30)
    standing.get(30)
    assert counts(nodes) == [before[0], before[1] + 1, before[2], before[3] + 1]
    wait_until(lambda: is_settled(nodes))


def test_all_of_a_stream_that_is_taken_back_end_and_who_was_called_goes_on(
    gate, node_mesh, nodes, wait_until
):
    before = counts(nodes)
    first, others = nodes[0], nodes[2:]
    streaming = first.stream_then.call_one(gate, node_mesh.slice(hosts=1))
    port, receiver = sm.Channel.open()
    waiting = [each.call_first.call_one(first, port) for each in others]
    for _ in waiting:
        receiver.recv().get(30)
    wait_until(lambda: gate.waiting.call_one().get(30) == 1)
    gate.open.call_one().get(30)
    assert streaming.get(30) == ["CallCycle", "CallCycle"]
    for each in waiting:
        each.get(30)
    assert counts(nodes) == [before[0] + len(others), *before[1:]]

"""Actors that wait for each other in a circle: the pure part, by random worlds; and real actors."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import slurmmesh as sm
from slurmmesh.actors import waits
from slurmmesh.actors.cycles import Probe, Standing, Wait
from slurmmesh.errors import ActorError, CallCycle
from tests.actors.circles import PATIENCE_S, cycle_in, hasten

HOSTS = 2

# ------------------------------------------------------------------ the pure part


class World:
    """Actors by number, who wait for others or not, and the probes that are on their way.

    Args:
        waits_for: of each actor: whom its endpoint has called and waits for; empty: it runs.
        owing: the pairs of them where the callee has still to answer.
        since: when each began to wait.
    """

    def __init__(
        self, waits_for: list[set[int]], owing: set[tuple[int, int]], since: list[int]
    ) -> None:
        self.waits_for = waits_for
        self.owing = owing
        self.standings = {
            actor: Standing(
                Wait(f"a[{actor}]", "run", actor.to_bytes(16, "big"), "called", since[actor], 1)
            )
            for actor, called in enumerate(waits_for)
            if called
        }
        self.failed: dict[int, CallCycle] = {}
        self.sent = 0

    def edges(self, actor: int) -> set[int]:
        """Whom an actor waits for that waits itself: where a circle may go on."""
        return {
            other
            for other in self.waits_for[actor]
            if (actor, other) in self.owing and other in self.standings
        }

    def in_circles(self) -> set[int]:
        found = set()
        for start in self.standings:
            reached: set[int] = set()
            ahead = self.edges(start)
            while ahead:
                actor = ahead.pop()
                if actor not in reached:
                    reached.add(actor)
                    ahead |= self.edges(actor)
            if start in reached:
                found.add(start)
        return found

    def run(self, order: Any, turns: int = 1) -> None:
        """Each waiting actor sends its probes; they arrive in any order."""
        on_way = [
            (actor, other, Probe((standing.wait,), turn))
            for actor, standing in self.standings.items()
            for other in self.waits_for[actor]
            for turn in range(1, turns + 1)
        ]
        while on_way:
            sender, actor, probe = on_way.pop(order.randrange(len(on_way)))
            self.sent += 1
            standing = self.standings.get(actor)
            if standing is None:
                continue
            mark = probe.waits[-1].call
            owed = (sender, actor) in self.owing
            found = standing.take(probe, lambda asked, mark=mark, owed=owed: owed and asked == mark)
            if isinstance(found, CallCycle):
                self.failed[actor] = found
            elif found is not None:
                on_way += [(actor, other, found) for other in self.waits_for[actor]]


@st.composite
def worlds(draw: st.DrawFn, most: int = 3) -> World:
    count = draw(st.integers(1, 7))
    actors = st.integers(0, count - 1)
    waits_for = [draw(st.sets(actors, max_size=most)) for _ in range(count)]
    pairs = [(actor, other) for actor, called in enumerate(waits_for) for other in called]
    owing = draw(st.sets(st.sampled_from(pairs))) if pairs else set()
    return World(waits_for, owing, [draw(st.integers(0, 3)) for _ in range(count)])


@pytest.mark.slow
@given(world=worlds(), order=st.randoms(use_true_random=False))
def test_who_is_in_no_circle_is_never_told_of_one_and_each_circle_is_broken(world, order):
    world.run(order)
    circles = world.in_circles()
    assert set(world.failed) <= circles
    for actor in world.failed:
        del world.standings[actor]
    assert len(world.in_circles()) < len(circles) or not circles


@pytest.mark.slow
@given(world=worlds(most=1), order=st.randoms(use_true_random=False), turns=st.integers(1, 3))
def test_where_each_waits_for_one_call_one_member_of_each_circle_fails_the_youngest(
    world, order, turns
):
    world.run(order, turns)
    for actor in world.in_circles():
        members = [actor]
        while (following := next(iter(world.waits_for[members[-1]]))) != actor:
            members.append(following)
        failed = [member for member in members if member in world.failed]
        assert len(failed) == 1
        waits = [world.standings[member].wait for member in members]
        youngest = max(waits, key=lambda wait: (wait.since, wait.call))
        assert world.standings[failed[0]].wait == youngest
        chain = world.failed[failed[0]].chain
        assert chain[-2] == f"a[{failed[0]}].run"
        assert len(chain) == len(members) + 1


@pytest.mark.slow
@given(world=worlds(most=7), order=st.randoms(use_true_random=False))
def test_no_probe_goes_round_for_ever_nor_by_each_of_all_ways(world, order):
    world.run(order)
    called = sum(map(len, world.waits_for))
    assert world.sent <= called * (1 + len(world.standings))


def test_a_wait_that_began_anew_is_not_the_one_that_a_probe_began_at():
    first = Wait("a[0]", "run", b"mark", "called", 1.0, 1)
    again = Standing(first._replace(number=2))
    other = Standing(Wait("b[0]", "run", b"other", "called", 2.0, 1))
    passed = other.take(Probe((first,)), lambda _mark: True)
    assert isinstance(passed, Probe)
    assert isinstance(again.take(passed, lambda _mark: True), Probe)


def test_the_error_is_the_same_after_a_journey():
    error = CallCycle(("ping[0].hit", "pong[0].hit", "ping[0].hit"))
    again = pickle.loads(pickle.dumps(error))
    assert (again.chain, str(again)) == (error.chain, str(error))
    assert "ping[0].hit → pong[0].hit → ping[0].hit" in str(error)


# ------------------------------------------------------------------ real actors


class Player(sm.Actor):
    def __init__(self) -> None:
        self.seen_times = 0
        self.kept: list[Any] = []

    @sm.endpoint
    def seen(self) -> int:
        self.seen_times += 1
        return self.seen_times

    @sm.concurrent_endpoint
    async def seen_beside(self) -> int:
        return self.seen()

    @sm.endpoint
    def along(self, path: list[Any], last: str = "seen") -> Any:
        """Wait for the next of the path to do so, and at its end for ``last``."""
        first, *rest = path
        called = first.along.call_one(rest, last) if rest else getattr(first, last).call_one()
        return called.get()

    @sm.endpoint
    async def along_async(self, path: list[Any]) -> Any:
        first, *rest = path
        return await (first.along_async.call_one(rest) if rest else first.seen.call_one())

    @sm.concurrent_endpoint
    async def along_beside(self, path: list[Any]) -> Any:
        first, *rest = path
        return await (first.along.call_one(rest) if rest else first.seen.call_one())

    @sm.endpoint
    def to_all(self, mesh: Any, me: Any, adverb: str) -> list[Any]:
        if adverb == "call":
            return list(mesh.along.call([me]).get().values())
        if adverb == "accumulate":
            return (
                sm.Accumulator(mesh.along, [], lambda all, one: [*all, one]).accumulate([me]).get()
            )
        if adverb == "choose":
            return [mesh.along.choose([me]).get()]
        return [future.get() for future in mesh.along.stream([me])]

    @sm.endpoint
    async def one_after_the_other(self, others: list[Any], me: Any) -> list[Any]:
        """Await several calls that are under way at a time."""
        futures = [others[0].seen.call_one(), *(each.along.call_one([me]) for each in others)]
        return [await each for each in futures]

    @sm.endpoint
    def without_waiting(self, other: Any, me: Any) -> int:
        """Have ``other`` call back without waiting for that, and take long over waiting for it."""
        return other.notes.call_one(me).get()

    @sm.endpoint
    async def notes(self, to: Any) -> int:
        self.kept.append(to.seen.call_one())
        await asyncio.sleep(10 * PATIENCE_S)
        return 7

    @sm.endpoint
    def noted(self) -> int:
        return self.kept.pop().get()

    @sm.endpoint
    def first_of(self, mesh: Any, me: Any) -> Any:
        """What the first of two answers that is there, though the other waits for this actor."""
        return next(mesh.only_others.stream(me)).get()

    @sm.endpoint
    async def only_others(self, me: Any) -> int:
        if sm.current_rank().rank == 0:
            return await me.seen.call_one()
        await asyncio.sleep(10 * PATIENCE_S)
        return 11

    @sm.endpoint(explicit_response_port=True)
    def hand_over(self, port: Any, to: Any, back: Any) -> None:
        """Have another actor answer, and wait for who waits for that."""
        to.answer.broadcast(port)
        self.kept.append(back.seen.call_one().get())

    @sm.endpoint
    async def answer(self, port: Any) -> None:
        await asyncio.sleep(10 * PATIENCE_S)
        port.send(13)

    @sm.endpoint
    def handed_over(self, other: Any, to: Any, me: Any) -> int:
        return other.hand_over.call_one(to, me).get()

    @sm.endpoint
    def ask(self, other: Any, endpoint: str, what: Any) -> Any:
        return getattr(other, endpoint).call_one(what).get()

    @sm.endpoint
    def meet(self, gate: Any, other: Any) -> int:
        """Wait for ``other`` once both are at it."""
        gate.pass_.call_one().get()
        return other.seen.call_one().get()


class Gate(sm.Actor):
    """Lets calls pass, two at a time."""

    def __init__(self) -> None:
        self.ports: list[Any] = []

    @sm.endpoint(explicit_response_port=True)
    def pass_(self, port: Any) -> None:
        self.ports.append(port)
        if len(self.ports) == 2:
            for each in self.ports:
                each.send(None)


class Child(sm.Actor):
    """Calls who made it while it is built."""

    def __init__(self, parent: Any) -> None:
        self.told = parent.seen.call_one().get()

    @sm.endpoint
    def value(self) -> int:
        return self.told


class Parent(sm.Actor):
    @sm.endpoint
    def seen(self) -> int:
        return 1

    @sm.endpoint
    def make(self, me: Any) -> int:
        return sm.this_proc().spawn("child", Child, me).value.call_one().get()


class Doomed(sm.Actor):
    @sm.endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Overseer(Player):
    """Has the death of a child told to the actor that waits for an endpoint which goes on."""

    @sm.concurrent_endpoint
    async def lose_child(self, teller: Any) -> int:
        self.teller = teller
        procs = sm.this_host().spawn_procs(name="doomed")
        procs.spawn("doomed", Doomed).die.broadcast()
        await asyncio.sleep(20 * PATIENCE_S)
        return 17

    async def __supervise__(self, _failure: sm.MeshFailure) -> bool:
        self.told = await self.teller.seen.call_one()
        return True

    @sm.endpoint
    def was_told(self) -> int:
        return self.told

    @sm.concurrent_endpoint
    async def along_blocking(self, path: list[Any]) -> Any:
        """Once another message has come; after that none can while this waits."""
        before = self.seen_times
        while self.seen_times == before:
            await asyncio.sleep(0.01)
        return self.along(path)


@pytest.fixture(scope="module")
def mesh(hosts, link_up):
    """Four, on two hosts: ``p[0]`` and ``p[1]`` are neighbours."""
    made = hosts.spawn_procs({"n": 2}, name="players", bootstrap=hasten).spawn("p", Player)
    link_up(made, "seen")
    return made


@pytest.fixture(scope="module")
def players(mesh):
    return [mesh.slice(hosts=host, n=n) for host in (0, 1) for n in (0, 1)]


@pytest.fixture
def gate(hosts):
    procs = hosts.slice(hosts=0).spawn_procs(name="gate")
    yield procs.spawn("gate", Gate)
    procs.stop().get(30)


@pytest.fixture
def overseer(hosts):
    procs = hosts.slice(hosts=0).spawn_procs(name="overseers", bootstrap=hasten)
    yield procs.spawn("overseer", Overseer)
    procs.stop().get(30)


@pytest.mark.parametrize("endpoint", ["along", "along_async"])
@pytest.mark.parametrize("path", [[0], [1, 0], [3, 0], [1, 3, 2, 0]])
def test_recursion_fails_where_it_closes_the_circle(players, endpoint, path):
    with pytest.raises(ActorError) as caught:
        getattr(players[0], endpoint).call_one([players[number] for number in path]).get(30)
    chain = [f"p[{number}].{endpoint}" for number in (0, *path[:-1])]
    assert cycle_in(caught.value).chain == (*chain, "p[0].seen")
    # And all go on.
    for number in {0, *path}:
        assert players[number].seen.call_one().get(30) > 0


def test_an_endpoint_that_runs_beside_others_is_no_help_where_the_one_before_it_waits(players):
    with pytest.raises(ActorError) as caught:
        players[0].along.call_one([players[1], players[0]], "seen_beside").get(30)
    assert cycle_in(caught.value).chain == ("p[0].along", "p[1].along", "p[0].seen_beside")


def test_endpoints_that_run_beside_others_may_be_called_back(players):
    assert players[0].along_beside.call_one([players[1], players[0]]).get(30) > 0


@pytest.mark.slow
def test_who_waits_for_an_endpoint_that_runs_beside_is_not_held_up_by_what_is_awaited(
    overseer, players
):
    assert players[0].ask.call_one(overseer, "lose_child", players[0]).get(30) == 17
    assert overseer.was_told.call_one().get(30) > 0


@pytest.mark.slow
def test_who_waits_for_an_endpoint_that_runs_beside_is_held_up_while_that_blocks(overseer, players):
    call = players[0].ask.call_one(overseer, "along_blocking", [players[1], players[0]])
    while not call.done():
        overseer.seen.call_one().get(30)
    chain = cycle_in(call.exception(30)).chain
    assert [name.split(".")[0] for name in chain] == ["p[0]", "overseer[0]", "p[1]", "p[0]"]


@pytest.mark.parametrize("adverb", ["call", "stream", "accumulate", "choose"])
def test_a_call_of_many_that_wait_for_the_caller_or_of_a_mesh_with_itself(players, mesh, adverb):
    whole = [mesh] if adverb != "choose" else [players[0]]  # of itself; by chance it would be
    for called in [mesh.slice(hosts=1), *whole]:
        with pytest.raises(ActorError) as caught:
            players[0].to_all.call_one(called, players[0], adverb).get(30)
        assert "p[0].to_all" in cycle_in(caught.value).chain
    assert players[0].along.call_one([players[1]]).get(30) > 0


def test_calls_that_are_awaited_one_after_the_other(players):
    others = [players[1], players[3]]
    error = players[0].one_after_the_other.call_one(others, players[0]).exception(30)
    chain = cycle_in(error).chain
    assert chain[0] == "p[0].one_after_the_other"
    assert chain[-1] == "p[0].seen"


def test_who_calls_back_without_waiting_is_no_circle(players):
    before = players[0].seen.call_one().get(30)
    assert players[0].without_waiting.call_one(players[1], players[0]).get(30) == 7
    assert players[1].noted.call_one().get(30) == before + 1


def test_a_stream_of_which_another_answers_first_is_no_circle(players, mesh):
    assert players[0].first_of.call_one(mesh.slice(hosts=1), players[0]).get(30) == 11


def test_a_call_that_a_third_actor_answers_is_no_circle(players):
    assert players[0].handed_over.call_one(players[1], players[2], players[0]).get(30) == 13


def test_two_that_wait_for_each_other_by_calls_of_their_own(gate, players):
    first, last = players[0], players[3]
    calls = [first.meet.call_one(gate, last), last.meet.call_one(gate, first)]
    errors = [call.exception(30) for call in calls]
    assert [error is None for error in errors].count(False) == 1
    chain = cycle_in(next(error for error in errors if error)).chain
    assert {name.split(".")[0] for name in chain} == {"p[0]", "p[3]"}


def test_a_constructor_that_waits_for_its_maker(hosts):
    procs = hosts.slice(hosts=0).spawn_procs(name="parents", bootstrap=hasten)
    parent = procs.spawn("parent", Parent)
    error = parent.make.call_one(parent).exception(30)
    assert "child[0].__init__" in str(error)
    assert "CallCycle" in str(error)
    procs.stop().get(30)


def test_actors_in_the_program_itself_are_found_as_well(players, here, monkeypatch):
    monkeypatch.setattr(waits, "PATIENCE_S", PATIENCE_S)
    one, there = here.spawn("here", Player), players[3]
    for first, second in ((one, there), (there, one)):
        error = first.along.call_one([second, first]).exception(30)
        assert len(cycle_in(error).chain) == 3
    assert one.along.call_one([there]).get(30) > 0
    one.stop().get(30)

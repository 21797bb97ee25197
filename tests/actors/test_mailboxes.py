"""Actors that are busy: who sends to them waits, the memory of their procs does not grow."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.actors import direct
from slurmmesh.actors.backlog import Backlog
from slurmmesh.errors import CallTimeout

pytestmark = pytest.mark.slow

ROOM = 1 << 20


def limit_room() -> None:
    """Of this process, so that little has to be sent until somebody waits."""
    direct.MAILBOX = ROOM


class Busy(sm.Actor):
    def __init__(self) -> None:
        self.sizes: list[int] = []

    @sm.endpoint
    def until(self, path: Path) -> int:
        while not path.exists():
            time.sleep(0.01)
        return len(self.sizes)

    @sm.endpoint
    def take(self, payload: bytes) -> int:
        self.sizes.append(len(payload))
        return len(self.sizes)

    @sm.endpoint
    def taken(self) -> int:
        return len(self.sizes)

    @sm.endpoint
    def reach(self, other: Any) -> bool:
        other.taken.call_one().get()
        return other.taken._place.direct is not None

    @sm.endpoint
    def flood(self, other: Any, count: int, size: int, started: Path) -> int:
        for number in range(count):
            other.take.broadcast(bytes(size))
            if number == count // 2:
                started.touch()
        return count

    @sm.endpoint
    def exchange(self, other: Any, count: int, size: int) -> int:
        """Flood one that does the same meanwhile."""
        for _ in range(count):
            other.take.broadcast(bytes(size))
        return count

    @sm.endpoint
    def have_it_flood(self, other: Any, me: Any, count: int, size: int, started: Path) -> int:
        return other.flood.call_one(me, count, size, started).get()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory, outlives_tests):
    folder = tmp_path_factory.mktemp("mailboxes")
    with outlives_tests(folder):
        made = sm.local_hosts(1, folder)
        yield made
        made.stop()


@pytest.fixture
def pair(hosts, link_up, monkeypatch, wait_until):
    """Two actors, each in a proc of its own."""
    monkeypatch.setattr(direct, "MAILBOX", ROOM)
    procs = hosts.spawn_procs({"n": 2}, name="busy", bootstrap=limit_room)
    mesh = procs.spawn("busy", Busy)
    link_up(mesh, "taken")
    first, second = mesh.slice(n=0), mesh.slice(n=1)
    for one, other in ((first, second), (second, first)):
        wait_until(lambda one=one, other=other: one.reach.call_one(other).get(30))
    yield first, second
    procs.stop().get(30)


def waits_for_room(actor: sm.ActorMesh) -> bool:
    """Whether a thread of this process waits until that actor takes what it has."""
    place = actor.take._place
    assert place is not None
    assert place.direct is not None
    backlog: Backlog = place.direct._backlog
    return bool(backlog._waiting)


@pytest.mark.parametrize("size", [100, 100_000])
@pytest.mark.parametrize("adverb", ["broadcast", "call_one"])
def test_who_sends_to_a_busy_actor_waits_and_nothing_is_lost(
    pair, tmp_path, wait_until, size, adverb
):
    actor, other = pair
    gate, count = tmp_path / "gate", 3 * ROOM // size if size > 1000 else 3 * ROOM // 1024
    held = actor.until.call_one(gate)
    sent = [0]

    def send() -> None:
        for _ in range(count):
            getattr(actor.take, adverb)(bytes(size))
            sent[0] += 1

    sender = threading.Thread(target=send)
    sender.start()
    wait_until(lambda: waits_for_room(actor))
    assert sent[0] * max(size, 1024) <= 2 * ROOM
    # The proc reads all the same, and calls and orders to others go on.
    assert other.taken.call_one().get(30) == 0
    assert sender.is_alive()
    gate.touch()
    assert held.get(30) == 0
    sender.join(30)
    assert actor.taken.call_one().get(30) == count


def test_a_call_with_a_deadline_waits_no_longer_than_that(pair, tmp_path):
    actor, _ = pair
    gate = tmp_path / "gate"
    held = actor.until.call_one(gate)
    late = actor.take.options(timeout=0.2)
    calls = [late.call_one(bytes(ROOM // 4)) for _ in range(8)]
    for call in calls:
        with pytest.raises(CallTimeout):
            call.get(30)
    gate.touch()
    assert held.get(30) == 0
    assert actor.taken.call_one().get(30) == len(calls)


def test_an_actor_that_sends_to_a_busy_one_waits(pair, tmp_path, wait_until):
    busy, sender = pair
    gate, started = tmp_path / "gate", tmp_path / "started"
    held = busy.until.call_one(gate)
    flood = sender.flood.call_one(busy, 40, 100_000, started)
    assert isinstance(flood.exception(1), CallTimeout)
    assert not started.exists()
    gate.touch()
    assert held.get(30) == 0
    assert flood.get(30) == 40
    wait_until(lambda: busy.taken.call_one().get(30) == 40)


def test_actors_that_flood_each_other_go_on(pair, wait_until):
    first, second = pair
    ways = ((first, second), (second, first))
    calls = [one.exchange.call_one(other, 60, 100_000) for one, other in ways]
    assert [call.get(60) for call in calls] == [60, 60]
    wait_until(lambda: first.taken.call_one().get(30) == second.taken.call_one().get(30) == 60)


def test_an_actor_that_floods_who_waits_for_it_goes_on(pair, tmp_path, wait_until):
    first, second = pair
    started = tmp_path / "started"
    assert first.have_it_flood.call_one(second, first, 60, 100_000, started).get(60) == 60
    wait_until(lambda: first.taken.call_one().get(30) == 60)


def test_one_that_is_stopped_or_dies_lets_its_senders_go(pair, tmp_path, wait_until):
    actor, _ = pair
    actor.until.call_one(tmp_path / "never")
    sender = threading.Thread(
        target=lambda: [actor.take.broadcast(bytes(100_000)) for _ in range(40)]
    )
    sender.start()
    wait_until(lambda: waits_for_room(actor))
    actor._procs.slice(n=0).send_signal(9)
    sender.join(30)
    assert not sender.is_alive()

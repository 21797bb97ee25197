"""Actors that are busy: who sends to them waits, the memory of their procs does not grow."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.actors import backlog
from slurmmesh.errors import CallTimeout, ProcDied

pytestmark = pytest.mark.slow

ROOM = 1 << 20


def limit_room() -> None:
    """Of this process, so that little has to be sent until somebody waits."""
    backlog.MAILBOX = ROOM


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
        """Flood some that do the same meanwhile."""
        for _ in range(count):
            other.take.broadcast(bytes(size))
        return count

    @sm.endpoint
    def have_it_flood(self, other: Any, me: Any, count: int, size: int, started: Path) -> int:
        return other.flood.call_one(me, count, size, started).get()


@pytest.fixture
def mesh(hosts, link_up, monkeypatch):
    """Three actors, each in a proc of its own. What is for several of them goes by the hosts."""
    monkeypatch.setattr(backlog, "MAILBOX", ROOM)
    procs = hosts.spawn_procs({"n": 3}, name="busy", bootstrap=limit_room)
    mesh = procs.spawn("busy", Busy)
    link_up(mesh, "taken")
    yield mesh
    procs.stop().get(30)


@pytest.fixture
def pair(mesh, wait_until):
    """Two of them, with direct links to each other."""
    first, second = mesh.slice(n=0), mesh.slice(n=1)
    for one, other in ((first, second), (second, first)):
        wait_until(lambda one=one, other=other: one.reach.call_one(other).get(30))
    return first, second


def waits_for_room(thread: threading.Thread) -> bool:
    """Whether a thread of this process waits until an actor takes what it has."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and frame.f_code is not backlog.Mailboxes.wait.__code__:
        frame = frame.f_back
    return frame is not None


@contextlib.contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[threading.Thread]:
    """Afterwards it has ended."""
    thread = threading.Thread(target=work)
    thread.start()
    yield thread
    thread.join(60)
    assert not thread.is_alive()


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

    with in_thread(send) as sender:
        wait_until(lambda: waits_for_room(sender))
        assert sent[0] * max(size, 1024) <= 2 * ROOM
        # The proc reads all the same, and calls and orders to others go on.
        assert other.taken.call_one().get(30) == 0
        assert sender.is_alive()
        gate.touch()
        assert held.get(30) == 0
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
    with in_thread(lambda: [actor.take.broadcast(bytes(100_000)) for _ in range(40)]) as sender:
        wait_until(lambda: waits_for_room(sender))
        actor._procs.slice(n=0).send_signal(9)


# -- by the hosts ------------------------------------------------------------------------------


def send_to_all(mesh: sm.ActorMesh, adverb: str) -> Any:
    return getattr(mesh.take, adverb)(bytes(100_000))


@pytest.mark.parametrize("adverb", ["broadcast", "call", "stream"])
def test_who_sends_to_many_of_whom_one_is_busy_waits_and_nothing_is_lost(
    mesh, tmp_path, wait_until, adverb
):
    gate, sent = tmp_path / "gate", []
    beside = mesh._procs.spawn("beside", Busy)
    held = mesh.slice(n=0).until.call_one(gate)
    with in_thread(lambda: [sent.append(send_to_all(mesh, adverb)) for _ in range(40)]) as sender:
        wait_until(lambda: waits_for_room(sender))
        assert len(sent) * 100_000 <= 2 * ROOM
        # Others can be called, also by the hosts: other ranks, and other actors of that proc.
        for _ in range(40):
            send_to_all(mesh.slice(n=slice(1, 3)), "call").get(30)
            send_to_all(beside, "call").get(30)
        assert sender.is_alive()
        gate.touch()
        assert held.get(30) == 0
    assert mesh.taken.call().get(30).values() == [40, 80, 80]
    assert beside.taken.call().get(30).values() == [40] * 3


def test_a_call_to_many_with_a_deadline_waits_no_longer_than_that(mesh, tmp_path):
    gate = tmp_path / "gate"
    held = mesh.slice(n=0).until.call_one(gate)
    calls = [mesh.take.options(timeout=0.1).call(bytes(ROOM // 4)) for _ in range(12)]
    assert {type(call.exception(30)) for call in calls} == {CallTimeout}
    gate.touch()
    assert held.get(30) == 0
    assert mesh.taken.call().get(30).values() == [12] * 3


def test_an_actor_that_sends_to_many_of_whom_one_is_busy_waits(mesh, tmp_path, wait_until):
    gate, started = tmp_path / "gate", tmp_path / "started"
    held = mesh.slice(n=0).until.call_one(gate)
    flood = mesh.slice(n=2).flood.call_one(mesh.slice(n=slice(0, 2)), 40, 100_000, started)
    assert isinstance(flood.exception(1), CallTimeout)
    assert not started.exists()
    gate.touch()
    assert held.get(30) == 0
    assert flood.get(30) == 40
    wait_until(lambda: mesh.taken.call().get(30).values() == [40, 40, 0])


def test_a_mesh_whose_actors_flood_all_of_it_goes_on(mesh, wait_until):
    assert mesh.exchange.call(mesh, 40, 100_000).get(60).values() == [40] * 3
    wait_until(lambda: mesh.taken.call().get(30).values() == [120] * 3)


@pytest.mark.parametrize("way", ["signal", "stop"])
def test_one_of_many_that_is_stopped_or_dies_lets_their_senders_go(mesh, tmp_path, wait_until, way):
    first = mesh.slice(n=0)
    gate = tmp_path / "gate"
    first.until.call_one(gate)

    def send() -> None:
        with contextlib.suppress(ProcDied):
            for _ in range(40):
                send_to_all(mesh, "broadcast")

    with in_thread(send) as sender:
        wait_until(lambda: waits_for_room(sender))
        if way == "signal":
            mesh._procs.slice(n=0).send_signal(9)
        else:
            stopped = first.stop()
            gate.touch()
            stopped.get(30)
    assert mesh.slice(n=slice(1, 3)).taken.call().get(30).values() == [40, 40]


@pytest.mark.parametrize("sender", ["program", "proc"])
def test_who_sends_to_a_busy_actor_of_the_programs_own_process_waits(
    mesh, here, tmp_path, wait_until, monkeypatch, sender
):
    one = here.spawn("busy", Busy)
    monkeypatch.setattr(one._runtime.own._mailboxes, "_most", ROOM)
    gate, started = tmp_path / "gate", tmp_path / "started"
    held = one.until.call_one(gate)
    if sender == "program":
        with in_thread(lambda: [send_to_all(one, "broadcast") for _ in range(40)]) as thread:
            wait_until(lambda: waits_for_room(thread))
            gate.touch()
    else:
        flood = mesh.slice(n=0).flood.call_one(one, 40, 100_000, started)
        assert isinstance(flood.exception(1), CallTimeout)
        assert not started.exists()
        gate.touch()
        assert flood.get(30) == 40
    assert held.get(30) == 0
    wait_until(lambda: one.taken.call_one().get(30) == 40)
    one.stop().get(30)

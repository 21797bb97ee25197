"""The tree for real: 20 host agents over TLS on this machine, of which one dies amid calls."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.errors import HostLost, ProcDied

pytestmark = pytest.mark.slow

HOSTS = 20


class Notes(sm.Actor):
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    @sm.endpoint
    def note(self, number: int) -> int:
        self.told.append(number)
        return number * 1000 + sm.current_rank().rank

    @sm.endpoint
    def all(self) -> list[int]:
        return self.told

    @sm.endpoint
    def large(self) -> bytes:
        return bytes([sm.current_rank().rank % 256]) * (1 << 20)

    @sm.endpoint
    def fail(self) -> None:
        if sm.current_rank().rank == 7:
            raise ValueError("seven")

    @sm.endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class Teller(sm.Actor):
    """Calls the notes from a host in the middle of the tree."""

    @sm.endpoint
    def note(self, notes: Any, number: int) -> list[int]:
        notes.note.broadcast(number)
        return list(notes.note.call(number + 1).get(60).values())


@pytest.fixture
def job(tmp_path: Path, dial_hosts: Any) -> Iterator[Any]:
    with dial_hosts(tmp_path / "job", HOSTS) as dialled:
        yield dialled


def test_calls_go_down_the_tree_and_survive_the_death_of_an_inner_host(job: Any, wait_until: Any):
    procs = job.hosts.spawn_procs({"gpus": 2}, name="notes")
    notes = procs.spawn("notes", Notes)
    everyone = range(2 * HOSTS)
    assert list(notes.note.call(1).get(120).values()) == [1000 + rank for rank in everyone]
    assert job.controller._life.casting.by_tree
    large = notes.large.call().get(60)
    assert [value[0] for value in large.values()] == list(everyone)
    with pytest.raises(sm.ActorError, match="seven"):
        notes.fail.call().get(60)

    # One sender, three ways: order holds between the tree, slices of it, and single ranks.
    for number in range(2, 32, 3):
        notes.note.broadcast(number)
        notes.slice(hosts=slice(0, 5)).note.broadcast(number + 1)
        assert notes.slice(hosts=1, gpus=0).note.call_one(number + 2).get(60) == (
            (number + 2) * 1000
        )
    told = notes.all.call().get(60)
    assert told.slice(hosts=1, gpus=0).item() == list(range(1, 32))
    assert told.slice(hosts=1, gpus=1).item() == [
        number for number in range(1, 32) if number % 3 != 1 or number == 1
    ]
    assert told.slice(hosts=19, gpus=0).item() == [1, *range(2, 32, 3)]

    # Hosts 0 and 2 are heads of two in the tree of 20: 1 hangs below 0.
    futures = [notes.note.call(100 + number) for number in range(20)]
    job.agents[0].kill()
    futures += [notes.note.call(200 + number) for number in range(20)]
    errors = [future.exception(60) for future in futures]
    assert isinstance(errors[-1], (ProcDied, HostLost)), errors[-1]
    rest = notes.slice(hosts=slice(1, HOSTS))
    assert rest.note.call(300).get(60).values()[0] == 300_000
    expected = [*range(100, 120), *range(200, 220), 300]
    for told in rest.all.call().get(60).values():
        late = [number for number in told if number >= 100]
        # A call that was refused at once, because the host was known to be lost, reached nobody.
        assert late == [number for number in expected if number in set(late)]
        assert len(late) == len(set(late))
        assert set(range(100, 120)) <= set(late)
        assert 300 in late


def test_what_a_proc_said_before_it_died_counts(job: Any):
    procs = job.hosts.spawn_procs(name="leaving")
    notes = procs.spawn("notes", Notes)
    notes.initialized.get(120)
    said, last = notes.note.call(5), notes.die.call()
    assert said.get(60).values() == [5000 + rank for rank in range(HOSTS)]
    error = last.exception(60)
    assert isinstance(error, ProcDied)
    assert error.cause.signal_name == "SIGKILL"


def test_an_actor_calls_all_hosts_down_the_tree(job: Any, monkeypatch: pytest.MonkeyPatch):
    notes = job.hosts.spawn_procs(name="notes").spawn("notes", Notes)
    tellers = job.hosts.slice(hosts=slice(4, 6)).spawn_procs(name="tellers")
    teller = tellers.spawn("teller", Teller).slice(hosts=1)
    passed: list[Any] = []
    casting = job.controller._life.casting
    monkeypatch.setattr(casting, "run_errand", lambda *each: passed.append(each))
    for number in range(0, 40, 2):
        answers = teller.note.call_one(notes, number).get(120)
        assert answers == [(number + 1) * 1000 + rank for rank in range(HOSTS)]
    assert all(told == list(range(40)) for told in notes.all.call().get(60).values())
    assert not passed

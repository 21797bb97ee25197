"""Actors that call meshes on several hosts: their requests go from host to host."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.errors import HostLost, ProcDied

HOSTS = 3


class Told(sm.Actor):
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[int] = []

    @sm.endpoint
    def tell(self, number: int, payload: bytes = b"") -> tuple[int, int, int]:
        self.told.append(number)
        return number, sm.current_rank().rank, len(payload)

    @sm.endpoint
    def all(self) -> list[int]:
        return self.told

    @sm.endpoint
    def fail(self) -> None:
        if sm.current_rank().rank == 3:
            raise ValueError("three")

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()


class Teller(sm.Actor):
    """Calls others, from a host."""

    @sm.endpoint
    def call(self, mesh: Any, number: int, size: int = 0) -> list[tuple[int, int, int]]:
        return list(mesh.tell.call(number, bytes(size)).get(60).values())

    @sm.endpoint
    def mix(self, mesh: Any, one: Any, numbers: int) -> None:
        """In three ways; ``one`` is a part of the mesh."""
        for number in range(0, numbers, 3):
            mesh.tell.broadcast(number)
            one.tell.call_one(number + 1).get(60)
            mesh.tell.call(number + 2)
        mesh.all.call().get(60)

    @sm.endpoint
    def broadcast(self, mesh: Any, number: int) -> None:
        mesh.tell.broadcast(number)

    @sm.endpoint
    def error(self, mesh: Any) -> tuple[str, str]:
        error = mesh.fail.call().exception(60)
        return type(error).__name__, str(error)

    @sm.endpoint
    def ask(self, mesh: Any) -> str:
        return type(mesh.tell.call(0).exception(60)).__name__

    @sm.endpoint
    def stream(self, mesh: Any) -> list[int]:
        return sorted(future.get(60)[1] for future in mesh.tell.stream(7))


@dataclass
class Job:
    """Hosts that came to their controller, and what of their requests passed it."""

    hosts: sm.HostMesh
    agents: list[subprocess.Popen[bytes]]
    by_controller: list[Any]


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dial_hosts: Any) -> Iterator[Job]:
    with dial_hosts(tmp_path / "job", HOSTS) as dialled:
        passed: list[Any] = []
        casting = dialled.controller._life.casting
        run_errand = casting.run_errand

        def counted(*args: Any) -> None:
            passed.append(args)
            run_errand(*args)

        monkeypatch.setattr(casting, "run_errand", counted)
        yield Job(dialled.hosts, dialled.agents, passed)


@pytest.mark.slow
def test_requests_go_from_host_to_host(job: Job, wait_until: Any):
    told = job.hosts.spawn_procs({"gpus": 2}, name="told").spawn("told", Told)
    tellers = job.hosts.slice(hosts=slice(0, 2)).spawn_procs(name="tellers").spawn("teller", Teller)
    teller = tellers.slice(hosts=0)
    everyone = range(2 * HOSTS)
    answers = [(1, rank, 0) for rank in everyone]
    assert tellers.call.call(told, 1).get(60).values() == [answers, answers]
    large = teller.call.call_one(told, 2, 3 << 20).get(60)
    assert large == [(2, rank, 3 << 20) for rank in everyone]
    # A part that is all elsewhere, one that is all here, and one on two other hosts.
    assert teller.call.call_one(told.slice(hosts=1), 3).get(60) == [(3, 0, 0), (3, 1, 0)]
    assert teller.call.call_one(told.slice(hosts=0), 4).get(60) == [(4, 0, 0), (4, 1, 0)]
    assert len(teller.call.call_one(told.slice(hosts=slice(1, 3)), 5).get(60)) == 4
    name, text = teller.error.call_one(told).get(60)
    assert (name, "three" in text) == ("ActorError", True)
    assert teller.stream.call_one(told).get(60) == list(everyone)
    teller.broadcast.call_one(told, 6).get(60)
    wait_until(lambda: all(6 in each for each in told.all.call().get(60).values()))
    assert not job.by_controller


@pytest.mark.slow
def test_one_sender_keeps_its_order_in_all_ways(job: Job):
    told = job.hosts.spawn_procs(name="told").spawn("told", Told)
    teller = job.hosts.slice(hosts=0).spawn_procs(name="teller").spawn("teller", Teller)
    for host in (1, 0):
        before = [len(each) for each in told.all.call().get(60).values()]
        teller.mix.call_one(told, told.slice(hosts=host), 90).get(60)
        for index, numbers in enumerate(told.all.call().get(60).values()):
            new = numbers[before[index] :]
            assert new == [n for n in range(90) if index == host or n % 3 != 1]
    assert not job.by_controller


@pytest.mark.slow
def test_a_host_that_dies_fails_what_it_owes_and_later_calls(job: Job):
    told = job.hosts.spawn_procs(name="told").spawn("told", Told)
    teller = job.hosts.slice(hosts=0).spawn_procs(name="teller").spawn("teller", Teller)
    assert len(teller.call.call_one(told, 1).get(60)) == HOSTS
    victim = told.pid.call().get(60).values()[1]
    os.kill(victim, signal.SIGKILL)
    assert teller.ask.call_one(told).get(60) == ProcDied.__name__
    job.agents[2].kill()
    failed = [teller.ask.call_one(told.slice(hosts=2)) for _ in range(3)]
    assert {each.get(60) for each in failed} <= {HostLost.__name__, ProcDied.__name__}
    assert teller.call.call_one(told.slice(hosts=0), 2).get(60) == [(2, 0, 0)]
    assert not job.by_controller


@pytest.mark.slow
def test_hosts_that_do_not_reach_each_other_go_by_the_controller(monkeypatch):
    hosts = sm.local_hosts(2)
    try:
        told = hosts.spawn_procs({"gpus": 2}, name="told").spawn("told", Told)
        teller = hosts.slice(hosts=1).spawn_procs(name="teller").spawn("teller", Teller)
        assert len(teller.call.call_one(told, 1).get(60)) == 4
        assert teller.stream.call_one(told).get(60) == [0, 1, 2, 3]
        # All of it on the host of the sender.
        here = hosts.slice(hosts=1).spawn_procs({"gpus": 3}, name="here").spawn("here", Told)
        assert len(teller.call.call_one(here, 1).get(60)) == 3
    finally:
        hosts.stop()

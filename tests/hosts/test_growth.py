"""Programs that spawn and stop all day: what is kept of a mesh goes when the mesh has gone."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.errors import ExitCause, MeshStopped
from slurmmesh.hosts import lifecycle, local
from slurmmesh.hosts.controller import Controller
from slurmmesh.hosts.messages import ProcGone, ProcStarted
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import Frame, Kind

COUNTING_AGENT = """
import json, sys
from slurmmesh.hosts import agent

class Counting(agent.HostAgent):
    def _say_goodbye(self):
        hosting, passing = self._hosting, self._hosting._passing
        sending = passing.sending
        tables = hosting._gone, passing._placed, self._log._levels, sending._found, sending._ways
        with open({path!r}, "w") as file:
            json.dump([len(table) for table in tables], file)
        super()._say_goodbye()

agent.HostAgent = Counting
agent.main()
"""
"""An agent that tells the sizes of its tables when it ends: nobody else sees them."""


class Child(sm.Actor):
    @sm.endpoint
    def ping(self) -> int:
        return 1


class Boss(sm.Actor):
    """Spawns and stops as well, and calls what it has spawned by its host."""

    @sm.endpoint
    def once(self) -> int:
        procs = sm.this_host().spawn_procs({"n": 2}, name="of-boss")
        answers = procs.spawn("child", Child).ping.call().get(60)
        procs.stop().get(60)
        return len(answers)


@pytest.fixture
def tables(tmp_path: Path, monkeypatch) -> Path:
    path = tmp_path / "tables"
    code = COUNTING_AGENT.format(path=str(path))
    monkeypatch.setattr(
        local, "python_command", lambda _module, *words: [sys.executable, "-c", code, *words]
    )
    monkeypatch.setattr(lifecycle, "KEEP_S", 0.0)
    return path


def sizes(controller: Controller) -> dict[str, int]:
    life, children = controller._life, controller.runtime.children
    kept: dict[str, Any] = {
        "meshes": life.meshes,
        "places": controller._caller._places,
        "broken": controller._caller._broken,
        "of hosts": controller.hosts[0].meshes,
        "doors": controller._introductions._doors,
        "windows": controller._streams._windows,
        "book": controller._book._open,
        "children": [child for all_of in children._by_process.values() for child in all_of],
        "own": controller._failures._own,
        "gathered": controller._failures._gathered,
        "spawned": [n for mesh in life.meshes.values() for n in mesh.spawned],
        "created": [n for mesh in life.meshes.values() for n in mesh.created],
    }
    return {name: len(table) for name, table in kept.items()}


@pytest.mark.slow
def test_meshes_that_were_stopped_take_no_room(tables, tmp_path, wait_until):
    hosts = sm.local_hosts(1, tmp_path)
    controller = hosts._controller
    lasting = hosts.spawn_procs(name="lasting")
    boss = lasting.spawn("boss", Boss)

    def run(times: int) -> tuple[sm.ProcMesh, sm.ActorMesh]:
        for number in range(times):
            procs = hosts.spawn_procs({"gpus": 2}, name="short")
            procs.logging_option(stream_to_client=True)
            child = procs.spawn("child", Child)
            child.ping.call().get(60)
            child.slice(gpus=0).ping.call_one().get(60)
            procs.stop().get(60)
            beside = lasting.spawn("beside", Child)
            beside.ping.call_one().get(60)
            beside.stop().get(60)
            if number % 3 == 0:
                assert boss.once.call_one().get(60) == 2
        wait_until(lambda: len(controller._life.meshes) == 1)
        return procs, child

    run(3)
    before = sizes(controller)
    procs, child = run(27)
    wait_until(lambda: sizes(controller) == before)

    # Whoever still holds one is told what became of it, and no more is kept for that.
    with pytest.raises(MeshStopped, match="short"):
        child.ping.call().get(60)
    with pytest.raises(MeshStopped, match="short"):
        child.slice(gpus=1).ping.call_one().get(60)
    for answer in child.ping.stream():
        with pytest.raises(MeshStopped, match="short"):
            answer.get(60)
    with pytest.raises(MeshStopped, match="short"):
        child.ping.broadcast()
    with pytest.raises(MeshStopped, match="short"):
        procs.spawn("again", Child)
    with pytest.raises(MeshStopped, match="short"):
        procs.initialized.get(60)
    procs.stop().get(60)
    child.stop().get(60)

    # News that comes late is of nobody's interest.
    host, mesh = controller.hosts[0], procs._mesh
    cause = ExitCause("short", 0, host.name, 1)
    for message in (
        ProcStarted(mesh, 0, 0, 1, time.time()),
        ProcGone(mesh, 0, 0, cause, True, time.time()),
    ):
        controller._on_frame(host, Frame(Kind.CONTROL, dumps(message)[0]))
    for kind in (Kind.RESULT, Kind.ERROR, Kind.DELIVERED, Kind.PORT):
        controller._on_frame(host, Frame(kind, dumps(None)[0], (), 1 << 40, mesh, 1, (0,)))
    assert controller._life.end_of(mesh, 0, 0).args[0] == "the mesh 'short' was stopped"
    assert sizes(controller) == before

    hosts.stop()
    # Of the host: how the lasting proc ended, where its mesh was, and the way to the controller.
    assert json.loads(tables.read_text()) == [1, 1, 0, 0, 1]


def switches(pid: int) -> int:
    """How often a process gave up its processor of itself, in all its threads."""
    return sum(
        int(line.split()[1])
        for task in Path(f"/proc/{pid}/task").iterdir()
        for line in (task / "status").read_text().splitlines()
        if line.startswith("voluntary_ctxt_switches")
    )


class Known(sm.Actor):
    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def one_host(tmp_path: Path) -> Iterator[sm.HostMesh]:
    made = sm.local_hosts(1, tmp_path)
    yield made
    made.stop()


@pytest.mark.slow
def test_procs_with_nothing_to_do_do_nothing(one_host, wait_until):
    """A turn of a loop now and then, times 64, is time that work on the same cores has not."""
    procs = one_host.spawn_procs({"gpus": 64}, name="idle")
    pids = list(procs.spawn("known", Known).pid.call().get(120).values())

    def are_quiet() -> bool:
        """Whether nothing happened for a second, which loops that poll never let be."""
        before = sum(switches(pid) for pid in pids)
        threading.Event().wait(1.0)
        return sum(switches(pid) for pid in pids) - before <= 4

    wait_until(are_quiet)

"""What an actor spawns is its own, and ends with it; actors beside the caller; one per job."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import slurmmesh as sm
from slurmmesh.errors import MeshStopped, SupervisionError, UsageError


class Leaf(sm.Actor):
    def __init__(self, folder: Path, name: str) -> None:
        self.folder = folder
        self.name = name

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def home(self) -> str:
        return sm.context().host

    def __cleanup__(self, error: BaseException | None) -> None:
        with open(self.folder / "ended", "a") as file:
            file.write(f"{self.name}\n")


class Parent(Leaf):
    """Spawns procs of its own, actors in them, and an actor beside itself."""

    @sm.endpoint
    def spawn(self, count: int = 2) -> list[int]:
        self.procs = sm.this_host().spawn_procs({"n": count}, name="children")
        self.children = self.procs.spawn("children", Leaf, self.folder, "child")
        self.beside = sm.this_proc().spawn("beside", Leaf, self.folder, "beside")
        assert self.beside.pid.call_one().get(30) == os.getpid()
        return self.children.pid.call().get(30).values()

    @sm.endpoint
    async def spawn_async(self) -> int:
        self.procs = sm.this_host().spawn_procs(name="children")
        self.children = self.procs.spawn("children", Leaf, self.folder, "child")
        return await self.children.pid.call_one()

    @sm.endpoint
    def meshes(self):
        return self.procs, self.children, self.beside, sm.this_host(), sm.this_proc()

    @sm.endpoint
    def spawn_on(self, procs: sm.ProcMesh) -> sm.ActorMesh:
        return procs.spawn("guest", Leaf, self.folder, "guest")

    @sm.endpoint
    def spawn_parent(self) -> list[int]:
        self.procs = sm.this_host().spawn_procs(name="middle")
        self.middle = self.procs.spawn("middle", Parent, self.folder, "middle")
        return [self.middle.pid.call_one().get(30), *self.middle.spawn.call_one(1).get(30)]

    @sm.endpoint
    def forbidden(self, what: str):
        host = sm.this_host()
        return host.stop() if what == "stop" else host.sync_workspace(self.folder)

    @sm.endpoint
    def shapes(self):
        return sm.this_host().sizes, sm.this_proc().sizes, sm.this_host().names

    @sm.endpoint
    def fail(self) -> None:
        raise RuntimeError("no more")

    @sm.endpoint
    def service(self, start: int) -> int:
        self.found = sm.get_or_spawn_controller("tally", Tally, start).get(30)
        return self.found.add.call_one(1).get(30)


class Tally(sm.Actor):
    def __init__(self, start: int) -> None:
        self.value = start

    @sm.endpoint
    def add(self, value: int) -> int:
        self.value += value
        return self.value

    @sm.endpoint
    def whole(self) -> tuple[int, str]:
        return os.getpid(), threading.current_thread().name

    @sm.endpoint
    def keep(self, array):
        self.array = array
        array += 1
        return array

    @sm.endpoint
    def leave(self) -> None:
        raise SystemExit(3)


def exists(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


def ended(folder: Path) -> list[str]:
    path = folder / "ended"
    return path.read_text().split() if path.exists() else []


@pytest.fixture
def parent(procs: sm.ProcMesh, tmp_path: Path) -> sm.ActorMesh:
    return procs.spawn("parent", Parent, tmp_path, "parent")


def test_children_end_before_the_actor_that_spawned_them(parent, tmp_path):
    pids = parent.spawn.call_one().get(60)
    assert len(set(pids)) == 2
    parent.stop().get(60)
    assert not any(map(exists, pids))
    names = ended(tmp_path)
    assert sorted(names) == ["beside", "child", "child", "parent"]
    assert names[-1] == "parent"


@pytest.mark.slow
def test_children_end_before_the_proc_that_spawned_them(procs, parent, tmp_path):
    pids = parent.spawn_parent.call_one().get(60)
    assert len(set(pids)) == 2
    procs.stop(grace_s=20).get(60)
    assert not any(map(exists, pids))
    assert ended(tmp_path) == ["child", "beside", "middle", "parent"] or ended(tmp_path) == [
        "beside",
        "child",
        "middle",
        "parent",
    ]


@pytest.mark.slow
def test_children_of_a_killed_proc_end_with_their_own(procs, parent, wait_until):
    pids = parent.spawn_parent.call_one().get(60)
    os.kill(parent.pid.call_one().get(60), signal.SIGKILL)
    wait_until(lambda: not any(map(exists, pids)))


class Hasty(sm.Actor):
    """Has children from the first moment."""

    def __init__(self) -> None:
        self.procs = sm.this_host().spawn_procs({"n": 2}, name="hasty")
        self.children = self.procs.spawn("children", Tally, 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["kill", "stop", "stop procs"])
def test_whoever_ends_while_it_spawns_leaves_nothing(hosts, how, wait_until, monkeypatch):
    monkeypatch.setattr(sm, "unhandled_fault_hook", lambda failure: None)
    first = hosts.spawn_procs(name="first")  # with the host's fork server
    first.initialized.get(60)
    first.stop().get(60)
    before = set(descendants(os.getpid()))
    for moment in (0, 0.03):
        procs = hosts.spawn_procs(name="hasty-parents")
        pid = procs.spawn("leaf", Leaf, Path("/nowhere"), "leaf").pid.call_one().get(60)
        hasty = procs.spawn("hasty", Hasty)
        threading.Event().wait(moment)  # any moment will do
        if how == "kill":
            os.kill(pid, signal.SIGKILL)
        elif how == "stop":
            hasty.stop().get(60)
        procs.stop(grace_s=10).get(60)
        wait_until(lambda: before.issuperset(descendants(os.getpid())))


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def test_an_actor_that_fails_takes_its_children_along(parent, tmp_path, wait_until, monkeypatch):
    monkeypatch.setattr(sm, "unhandled_fault_hook", lambda failure: None)
    pid = parent.spawn_async.call_one().get(60)
    parent.fail.broadcast()
    wait_until(lambda: not exists(pid))
    wait_until(lambda: ended(tmp_path) == ["child", "parent"])


@pytest.mark.slow
def test_meshes_of_an_actor_are_values(parent):
    pids = parent.spawn.call_one().get(60)
    procs, children, beside, host, proc = parent.meshes.call_one().get(60)
    assert children.pid.call().get(60).values() == pids
    assert procs.sizes == {"n": 2}
    assert procs.initialized.get(60)
    assert children.initialized.get(60)
    assert beside.pid.call_one().get(60) == parent.pid.call_one().get(60)
    assert host.names == procs.hosts[:1] == proc.hosts
    # What the program spawns there is the program's own.
    mine = host.spawn_procs(name="mine")
    leaf = mine.spawn("leaf", Leaf, Path("/nowhere"), "leaf")
    guest = proc.spawn("guest", Leaf, Path("/nowhere"), "guest")
    parent.stop().get(60)
    assert leaf.home.call_one().get(60) == guest.home.call_one().get(60)
    with pytest.raises(MeshStopped):
        children.pid.call().get(60)
    mine.stop().get(60)


def test_an_actor_may_own_actors_on_a_mesh_it_was_given(hosts, parent, tmp_path):
    others = hosts.spawn_procs({"n": 2}, name="others")
    guest = parent.spawn_on.call_one(others).get(60)
    assert guest.pid.call().get(60)
    parent.stop().get(60)
    assert ended(tmp_path) == ["guest", "guest", "parent"]
    with pytest.raises(MeshStopped):
        guest.pid.call().get(60)
    others.stop().get(60)


def test_hosts_are_stopped_and_filled_by_the_program_itself(parent):
    for what in ("stop", "sync"):
        with pytest.raises(sm.ActorError, match="by the program itself") as caught:
            parent.forbidden.call_one(what).get(60)
        assert isinstance(caught.value.exception, UsageError)
    host, proc, names = parent.shapes.call_one().get(60)
    assert host == proc == {}
    assert names == ["local0"]


def test_actors_in_the_programs_own_process_get_copies(here):
    tally = here.spawn("tally", Tally, 5)
    assert here.sizes == tally.sizes == {}
    assert tally.initialized.get(60)
    pid, thread = tally.whole.call_one().get(60)
    assert pid == os.getpid()
    assert thread != threading.current_thread().name
    array = np.zeros(1 << 16)
    back = tally.keep.call_one(array).get(60)
    assert (array[0], back[0]) == (0, 1)
    back[0] = 7
    assert tally.keep.call_one(array).get(60)[0] == 1
    assert [future.get(60) for future in tally.add.stream(1)] == [6]
    tally.add.broadcast(1)
    assert tally.add.call(1).get(60).values() == [8]
    with pytest.raises(sm.ActorError, match="unsupported operand"):
        tally.add.call_one("x").get(60)
    tally.stop().get(60)
    with pytest.raises(MeshStopped):
        tally.add.call_one(1).get(60)
    with pytest.raises(UsageError, match="the program itself"):
        here.stop()


def test_an_actor_in_the_programs_process_that_exits_ends_itself_alone(here, monkeypatch):
    monkeypatch.setattr(sm, "unhandled_fault_hook", lambda failure: None)
    tally = here.spawn("tally", Tally, 5)
    with pytest.raises(sm.SupervisionError, match="SystemExit"):
        tally.leave.call_one().get(60)
    with pytest.raises(sm.SupervisionError, match="SystemExit"):
        tally.add.call_one(1).get(60)
    tally.stop().get(60)


def test_procs_reach_actors_of_the_program_as_values(here, procs, tmp_path):
    tally = here.spawn("tally", Tally, 0)
    user = procs.spawn("user", User, tally)
    assert user.use.call_one(4).get(60) == 4
    assert user.use.call_one(4).get(60) == 8
    user.cast.call_one(4).get(60)
    assert user.use.call_one(0).get(60) == 12
    tally.stop().get(60)


class User(sm.Actor):
    def __init__(self, tally: sm.ActorMesh) -> None:
        self.tally = tally

    @sm.endpoint
    def use(self, value: int) -> int:
        return self.tally.add.call_one(value).get(30)

    @sm.endpoint
    def cast(self, value: int) -> None:
        self.tally.add.broadcast(value)


def test_there_is_one_controller_of_a_name_whoever_asks(here, hosts, tmp_path):
    procs = hosts.spawn_procs({"n": 2}, name="askers")
    parents = procs.spawn("parent", Parent, tmp_path, "parent")
    values = parents.service.call(100).get(60).values()
    assert sorted(values) == [101, 102]
    tally = sm.get_or_spawn_controller("tally", Tally, 7).get(60)
    assert tally.add.call_one(0).get(60) == 102
    assert tally.whole.call_one().get(60)[0] == os.getpid()
    other = sm.get_or_spawn_controller("another", Tally, 7).get(60)
    assert other.add.call_one(0).get(60) == 7
    with pytest.raises(TypeError):
        sm.get_or_spawn_controller("third", Tally)
    procs.stop().get(60)
    tally.stop().get(60)
    other.stop().get(60)
    again = sm.get_or_spawn_controller("tally", Tally, 7).get(60)
    assert again.add.call_one(0).get(60) == 7
    again.stop().get(60)


def test_an_actor_for_which_there_is_no_thread_is_refused_and_forgotten(here, hosts):
    spawned = here.spawn("before", Tally, 1)
    assert spawned.add.call_one(0).get(60) == 1
    threading.stack_size(1 << 47)  # no process has so much room
    try:
        refused = here.spawn("refused", Tally, 1)
        with pytest.raises(SupervisionError, match=r"'refused' cannot run .*: can't start new"):
            refused.initialized.get(60)
        with pytest.raises(SupervisionError, match=r"'refused' cannot run .*: can't start new"):
            refused.add.call_one(0).get(60)
        sm.get_or_spawn_controller("tally", Tally, 7).get(60)
    finally:
        threading.stack_size(0)
    tally = sm.get_or_spawn_controller("tally", Tally, 7).get(60)  # the same name, once more
    assert tally.add.call_one(0).get(60) == 7
    for each in (spawned, refused, tally):
        each.stop().get(60)

"""The life of meshes: bootstrap, stop of actors alone, what waits meanwhile, scopes."""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.errors import MeshStopped, ProcDied, SupervisionError, UsageError


class Worker(sm.Actor):
    """Notes in files what happens to it, and can be held up."""

    def __init__(self, folder: Path, name: str = "worker") -> None:
        self.folder = folder
        self.name = name

    @sm.endpoint
    def note(self, text: str) -> None:
        (self.folder / f"{self.name}.{text}.{sm.current_rank().rank}").touch()

    @sm.endpoint
    def busy(self, until: str) -> str:
        self.note("busy")
        while not (self.folder / until).exists():
            time.sleep(0.001)
        return "done"

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def on_main_thread(self) -> bool:
        return threading.current_thread() is threading.main_thread()

    @sm.endpoint
    def thread_count(self) -> int:
        return threading.active_count()

    def __cleanup__(self, error: BaseException | None) -> None:
        (self.folder / f"{self.name}.cleanup.{sm.current_rank().rank}").write_text(repr(error))


class Booted(sm.Actor):
    @sm.endpoint
    def env(self, name: str) -> str | None:
        return os.environ.get(name)


def boot() -> None:
    os.environ["BOOTED"] = f"{sm.current_rank().rank} {dict(sm.current_rank())}"


async def boot_later() -> None:
    await asyncio.sleep(0)
    os.environ["BOOTED"] = "later"


def boot_badly() -> None:
    if sm.current_rank()["gpus"] == 1:
        raise RuntimeError("no such device")


@pytest.fixture(scope="module")
def procs(hosts: sm.HostMesh, link_up, tmp_path_factory) -> sm.ProcMesh:
    made = hosts.spawn_procs({"gpus": 2}, name="life")
    first = made.spawn("first", Worker, tmp_path_factory.mktemp("first"))
    link_up(first, "pid")
    first.stop().get(30)
    return made


def test_bootstrap_runs_first_and_sees_its_rank(hosts):
    procs = hosts.spawn_procs({"gpus": 2}, name="booted", bootstrap=boot)
    booted = procs.spawn("booted", Booted)
    answers = booted.env.call("BOOTED").get(30).values()
    assert answers == ["0 {'hosts': 0, 'gpus': 0}", "1 {'hosts': 0, 'gpus': 1}"]
    later = hosts.spawn_procs(name="booted", bootstrap=boot_later)
    assert later.spawn("booted", Booted).env.call_one("BOOTED").get(30) == "later"
    procs.stop().get(30)
    later.stop().get(30)


def test_a_bootstrap_that_raises_fails_its_rank_with_its_text(hosts):
    procs = hosts.spawn_procs({"gpus": 2}, name="booted", bootstrap=boot_badly)
    booted = procs.spawn("booted", Booted)
    with pytest.raises(ProcDied, match="no such device"):
        booted.env.call("HOME").get(30)
    with pytest.raises(ProcDied, match="no such device"):
        procs.initialized.get(30)
    assert booted.slice(gpus=0).env.call_one("BOOTED").get(30) is None
    procs.stop().get(30)


def test_a_bootstrap_is_checked_before_anything_starts(hosts):
    with pytest.raises(UsageError, match="function"):
        hosts.spawn_procs(bootstrap="boot")
    lock = threading.Lock()
    with pytest.raises(UsageError, match="cannot be sent"):
        hosts.spawn_procs(bootstrap=lambda: lock.locked())


def test_initialized_is_there_on_every_kind_of_mesh(hosts, procs, tmp_path):
    assert hosts.initialized.get(10)
    assert procs.initialized.get(10)
    worker = procs.spawn("worker", Worker, tmp_path)
    assert worker.initialized.get(10)
    assert worker.slice(gpus=0).initialized.get(10)
    worker.stop().get(10)


def test_stop_ends_the_actors_and_nothing_else(procs, tmp_path, wait_until):
    other = procs.spawn("other", Worker, tmp_path, "other")
    worker = procs.spawn("worker", Worker, tmp_path)
    pids = worker.pid.call().get(30)
    running = worker.busy.call("go")
    wait_until(lambda: all((tmp_path / f"worker.busy.{rank}").exists() for rank in range(2)))
    queued = worker.pid.call()
    worker.note.broadcast("lost")
    stopped = worker.stop()
    assert other.pid.call().get(30) == pids  # the order has arrived, on the same way
    assert not stopped.done()
    (tmp_path / "go").touch()
    assert running.get(30).values() == ["done", "done"]
    with pytest.raises(MeshStopped):
        queued.get(30)
    stopped.get(30)
    # The hook ran on each rank, which knew which one it is.
    assert [(tmp_path / f"worker.cleanup.{rank}").read_text() for rank in range(2)] == ["None"] * 2
    assert not list(tmp_path.glob("worker.lost.*"))
    with pytest.raises(MeshStopped, match="worker"):
        worker.pid.call().get(30)
    worker.note.broadcast("late")  # as after it: it vanishes
    worker.stop().get(30)
    assert other.pid.call().get(30) == pids
    assert not list(tmp_path.glob("worker.late.*"))
    other.stop().get(30)


def test_a_slice_of_actors_can_be_stopped(procs, tmp_path):
    worker = procs.spawn("worker", Worker, tmp_path)
    worker.slice(gpus=0).stop().get(30)
    with pytest.raises(MeshStopped):
        worker.slice(gpus=0).pid.call_one().get(30)
    assert worker.slice(gpus=1).pid.call_one().get(30)
    worker.stop().get(30)
    assert (tmp_path / "worker.cleanup.1").exists()


def test_stopped_actors_leave_their_threads_and_the_main_thread_to_others(procs, tmp_path):
    first = procs.spawn("first", Worker, tmp_path, "first")
    assert first.on_main_thread.call().get(30).values() == [True, True]
    threads = first.thread_count.call().get(30).values()
    for number in range(5):
        more = procs.spawn("more", Worker, tmp_path, f"more{number}")
        assert more.on_main_thread.call().get(30).values() == [False, False]
        more.stop().get(30)
    assert max(first.thread_count.call().get(30).values()) <= max(threads) + 1
    first.stop().get(30)
    for _ in range(20):  # each at once when the one before is said to be gone
        second = procs.spawn("second", Worker, tmp_path, "second")
        assert second.on_main_thread.call().get(30).values() == [True, True]
        second.stop().get(30)


def test_two_spawns_of_one_name_are_two_meshes(procs, tmp_path):
    one = procs.spawn("same", Worker, tmp_path, "one")
    two = procs.spawn("same", Worker, tmp_path, "two")
    one.stop().get(30)
    assert two.pid.call().get(30)
    two.stop().get(30)


def test_meshes_are_scopes_of_async_with(hosts, tmp_path):
    async def main() -> list[int]:
        async with hosts.spawn_procs({"gpus": 2}, name="scope") as procs:
            await procs.initialized
            async with procs.spawn("worker", Worker, tmp_path) as worker:
                await worker.initialized
                pids = (await worker.pid.call()).values()
            with pytest.raises(MeshStopped):
                await worker.pid.call()
            assert (tmp_path / "worker.cleanup.0").exists()
        with pytest.raises(MeshStopped):
            procs.spawn("worker", Worker, tmp_path)
        return pids

    for pid in asyncio.run(main()):
        assert not Path(f"/proc/{pid}").exists()


def test_an_endpoint_cannot_have_the_name_of_what_meshes_have(procs):
    for name in ("stop", "slice", "initialized", "size", "name", "_created"):
        made = type("Bad", (sm.Actor,), {name: sm.endpoint(lambda self: None)})
        with pytest.raises(ValueError, match=f"rename the endpoint '{name}'"):
            procs.spawn("bad", made)


class Leaver(sm.Actor):
    @sm.endpoint
    def at_exit(self, path: Path, hold: bool = False) -> None:
        atexit.register(path.touch)
        if hold:
            atexit.register(threading.Event().wait)  # what is registered last runs first

    @sm.endpoint
    def leave(self, how: str) -> None:
        raise SystemExit(how) if how == "exit" else KeyboardInterrupt

    @sm.endpoint
    def fine(self) -> bool:
        return True


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_an_actor_that_exits_takes_its_proc_along(hosts, how):
    procs = hosts.spawn_procs({"gpus": 2}, name="leaver")
    leaver = procs.spawn("leaver", Leaver)
    with pytest.raises(SupervisionError, match="rank 1"):
        leaver.slice(gpus=1).leave.call_one(how).get(30)
    assert leaver.slice(gpus=0).fine.call_one().get(30)
    procs.stop().get(30)


@pytest.mark.parametrize("how", ["exit", "interrupt"])
@pytest.mark.parametrize("thread", ["main", "own"])
def test_what_is_registered_with_atexit_runs_whichever_thread_ends_the_proc(
    hosts, tmp_path, thread, how
):
    procs = hosts.spawn_procs(name="leaver")
    actors = [procs.spawn("leaver", Leaver) for _ in range(2)]
    actors[0].at_exit.call_one(tmp_path / "left").get(30)
    with pytest.raises(ProcDied):
        actors[thread == "own"].leave.call_one(how).get(30)
    assert (tmp_path / "left").exists()
    procs.stop().get(30)


def test_a_proc_whose_atexit_does_not_end_is_killed_when_its_time_is_up(hosts, tmp_path):
    procs = hosts.spawn_procs(name="leaver")
    procs.spawn("leaver", Leaver).at_exit.call_one(tmp_path / "left", hold=True).get(30)
    procs.stop(grace_s=0.5).get(30)
    assert not (tmp_path / "left").exists()

"""Failures climb: to ``__supervise__`` of the owner, on up, and at last to the program."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.errors import ProcDied, SupervisionError

HOOK_S = 60


class Child(sm.Actor):
    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise RuntimeError("cannot be built")

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def die(self, last_words: str) -> None:
        print(last_words, file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)

    @sm.endpoint
    def fail(self, text: str) -> None:
        raise RuntimeError(text)


class Owner(sm.Actor):
    """Spawns children and deals with their failures as it is told to."""

    def __init__(self, how: str = "handle") -> None:
        self.how = how
        self.told: list[sm.MeshFailure] = []

    @sm.endpoint
    def spawn(self, name: str = "child", count: int = 2, fails: bool = False) -> list[int]:
        self.procs = sm.this_host().spawn_procs({"n": count}, name=f"{name}-procs")
        self.children = self.procs.spawn(name, Child, fails)
        return [] if fails else self.children.pid.call().get(60).values()

    @sm.endpoint
    def spawn_below(self, how: str) -> list[int]:
        self.procs = sm.this_host().spawn_procs(name="middle-procs")
        self.middle = self.procs.spawn("middle", Owner, how)
        return self.middle.spawn.call_one().get(60)

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def middle_pid(self) -> int:
        return self.middle.pid.call_one().get(60)

    @sm.endpoint
    def break_child(self, text: str) -> None:
        self.children.slice(n=1).fail.broadcast(text)

    @sm.endpoint
    def again(self) -> list[int]:
        """After a death: on the same host, and what is left of the mesh."""
        left = self.children.slice(n=0).pid.call_one().get(60)
        return [left, *self.spawn()]

    @sm.endpoint
    def failures(self) -> list[tuple[str, list[int], str]]:
        return [(f.mesh_name, [each.rank for each in f.ranks], f.report()) for f in self.told]

    @sm.endpoint
    def fail_in_broadcast(self) -> None:
        raise RuntimeError("broken by its own")

    def __supervise__(self, failure: sm.MeshFailure) -> Any:
        self.told.append(failure)
        if self.how == "raise":
            raise ValueError("no idea what to do")
        return {"handle": True, "pass": False}[self.how]


class AsyncOwner(Owner):
    async def __supervise__(self, failure: sm.MeshFailure) -> bool:
        return super().__supervise__(failure)


@pytest.fixture
def faults(monkeypatch) -> queue.Queue[sm.MeshFailure]:
    """What reaches the program's hook."""
    found: queue.Queue[sm.MeshFailure] = queue.Queue()
    monkeypatch.setattr(sm, "unhandled_fault_hook", found.put)
    return found


def told(owner: sm.ActorMesh, wait_until, times: int = 1) -> list[tuple[str, list[int], str]]:
    wait_until(lambda: len(owner.failures.call_one().get(60)) >= times)
    return owner.failures.call_one().get(60)


@pytest.mark.parametrize("cls", [Owner, AsyncOwner])
def test_a_death_is_dealt_with_by_the_owner(procs, faults, wait_until, cls):
    owner = procs.spawn("owner", cls)
    pids = owner.spawn.call_one("worker").get(60)
    os.kill(pids[1], signal.SIGKILL)
    ((name, ranks, report),) = told(owner, wait_until)
    assert (name, ranks) == ("worker", [1])
    for part in ("rank 1", "'worker-procs'", "local0", "SIGKILL", str(pids[1])):
        assert part in report
    assert owner.failures.call_one().get(60)  # it lives
    assert faults.empty()


def test_ranks_that_die_together_are_all_reported(procs, faults, wait_until):
    owner = procs.spawn("owner", Owner)
    pids = owner.spawn.call_one("worker", 3).get(60)
    for pid in pids[:2]:
        os.kill(pid, signal.SIGKILL)
    failures = told(owner, wait_until)
    assert [ranks for _, ranks, _ in failures] == [[0, 1]]
    assert all(str(pid) in failures[0][2] for pid in pids[:2])


def test_after_a_death_the_rest_is_usable_and_the_host_takes_new_procs(procs, faults, wait_until):
    owner = procs.spawn("owner", Owner)
    pids = owner.spawn.call_one().get(60)
    os.kill(pids[1], signal.SIGKILL)
    told(owner, wait_until)
    left, *new = owner.again.call_one().get(60)
    assert left == pids[0]
    assert not set(new) & set(pids)


def test_an_actor_that_breaks_in_a_broadcast_is_a_failure_of_its_rank(procs, faults, wait_until):
    owner = procs.spawn("owner", Owner)
    owner.spawn.call_one().get(60)
    owner.break_child.call_one("it went wrong").get(60)
    ((name, ranks, report),) = told(owner, wait_until)
    assert (name, ranks) == ("child", [1])
    assert "it went wrong" in report
    assert "rank 1" in report


def test_a_constructor_that_raises_is_a_failure_of_all_its_ranks(procs, faults, wait_until):
    owner = procs.spawn("owner", Owner)
    owner.spawn.call_one(fails=True).get(60)
    # Procs come up one after the other: it may be told in two parts.
    wait_until(lambda: {r for _, ranks, _ in told(owner, wait_until) for r in ranks} == {0, 1})
    assert all("cannot be built" in report for _, _, report in told(owner, wait_until))


@pytest.mark.parametrize("how", ["pass", "raise"])
def test_what_an_owner_does_not_deal_with_climbs_with_all_that_is_known(
    procs, faults, wait_until, how
):
    top = procs.spawn("top", Owner)
    pids = top.spawn_below.call_one(how).get(60)
    os.kill(pids[0], signal.SIGKILL)
    ((name, ranks, report),) = told(top, wait_until)
    assert (name, ranks) == ("middle", [0])
    assert "'child'" in report
    assert "SIGKILL" in report
    assert ("no idea what to do" in report) == (how == "raise")
    assert faults.empty()
    # What the middle owned went with it.
    wait_until(lambda: not Path(f"/proc/{pids[1]}").exists())


def test_what_nobody_deals_with_reaches_the_program(procs, faults):
    top = procs.spawn("top", Owner, "pass")
    pids = top.spawn_below.call_one("pass").get(60)
    os.kill(pids[0], signal.SIGKILL)
    failure = faults.get(timeout=HOOK_S)
    assert failure.mesh_name == "top"
    for name in ("'top'", "'middle'", "'child'", "SIGKILL"):
        assert name in failure.report()
    with pytest.raises(SupervisionError, match="SIGKILL"):
        top.failures.call_one().get(60)


def test_an_idle_death_that_nobody_hears_of_reaches_the_program(hosts, faults):
    procs = hosts.spawn_procs({"n": 3}, name="idle")
    child = procs.spawn("child", Child)
    pids = child.pid.call().get(60).values()
    for pid in pids[1:]:
        os.kill(pid, signal.SIGKILL)
    failure = faults.get(timeout=HOOK_S)
    assert (failure.mesh_name, [each.rank for each in failure.ranks]) == ("child", [1, 2])
    assert child.slice(n=0).pid.call_one().get(60) == pids[0]
    procs.stop().get(60)


def test_what_a_call_tells_the_program_is_not_told_again(hosts, faults):
    procs = hosts.spawn_procs({"n": 2}, name="heard")
    child = procs.spawn("child", Child)
    with pytest.raises(ProcDied, match="so long"):
        child.slice(n=0).die.call_one("so long").get(60)
    broken = procs.slice(n=1).spawn("broken", Child)
    broken.fail.broadcast("it broke")
    with pytest.raises(SupervisionError, match="it broke"):
        broken.pid.call().get(60)
    never = procs.slice(n=1).spawn("never", Child, True)
    with pytest.raises(sm.ActorError, match="cannot be built"):
        never.initialized.get(60)
    # A later one that nobody hears of is told: by then the others would have been.
    last = procs.slice(n=1).spawn("last", Child)
    last.fail.broadcast("unheard")
    assert "unheard" in faults.get(timeout=HOOK_S).report()
    assert faults.empty()
    procs.stop().get(60)


def test_who_watches_or_restarts_is_not_told_by_the_hook(hosts, faults):
    events: queue.Queue[sm.ProcEvent] = queue.Queue()
    watched = hosts.spawn_procs(name="watched")
    watched.on_event(events.put)
    restarted = hosts.spawn_procs(name="restarted", supervise=sm.Supervision())
    unwatched = hosts.spawn_procs(name="unwatched")
    meshes = [mesh.spawn("child", Child) for mesh in (watched, restarted, unwatched)]
    for mesh in meshes:
        os.kill(mesh.pid.call_one().get(60), signal.SIGKILL)
    failure = faults.get(timeout=HOOK_S)
    assert "'unwatched'" in failure.report()
    assert faults.empty()
    for procs in (watched, restarted, unwatched):
        procs.stop().get(60)


def test_a_budget_that_is_spent_climbs_with_its_causes(hosts, faults):
    once = sm.Supervision(max_restarts=0, within_s=60)
    procs = hosts.spawn_procs(name="spent", supervise=once)
    child = procs.spawn("child", Child)
    os.kill(child.pid.call_one().get(60), signal.SIGKILL)
    failure = faults.get(timeout=HOOK_S)
    assert failure.mesh_name == "child"
    assert "SIGKILL" in failure.report()


def test_what_is_stopped_on_purpose_is_no_failure(hosts, procs, faults):
    owner = procs.spawn("owner", Owner)
    owner.spawn.call_one().get(60)
    owner.stop().get(60)
    unheard = hosts.spawn_procs(name="unheard")
    child = unheard.spawn("child", Child)
    os.kill(child.pid.call_one().get(60), signal.SIGKILL)
    assert "'unheard'" in faults.get(timeout=HOOK_S).report()
    assert faults.empty()


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(program))
    return subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": os.getcwd()},
    )


def test_by_default_a_failure_ends_the_program_with_a_report(tmp_path):
    done = run(
        """
        import os, signal, sys, time
        import slurmmesh as sm

        class Child(sm.Actor):
            @sm.endpoint
            def pid(self):
                print("last line", file=sys.stderr, flush=True)
                return os.getpid()

        procs = sm.this_host().spawn_procs({"n": 2}, name="procs")
        pids = procs.spawn("child", Child).pid.call().get(60).values()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        print(*pids, flush=True)
        time.sleep(60)
        """,
        tmp_path,
    )
    assert done.returncode == 1
    assert "nobody dealt with this: mesh 'child' has failed on ranks 0, 1" in done.stderr
    assert done.stderr.count("killed by SIGKILL") == 2
    assert "| last line" in done.stderr
    for pid in done.stdout.split():
        assert not Path(f"/proc/{pid}").exists()


@pytest.mark.slow
@pytest.mark.parametrize("held", [False, True])
def test_a_failure_ends_the_program_though_its_atexit_does_not_end(tmp_path, held):
    done = run(
        f"""
        import atexit, os, signal, threading
        import slurmmesh as sm
        from slurmmesh.hosts import endings

        class Child(sm.Actor):
            @sm.endpoint
            def pid(self):
                return os.getpid()

        pid = sm.this_host().spawn_procs().spawn("child", Child).pid.call_one().get(60)
        atexit.register(print, "registered", flush=True)
        if {held}:
            endings.LATEST_S = 1.0
            atexit.register(threading.Event().wait)
        os.kill(pid, signal.SIGKILL)
        threading.Event().wait()
        """,
        tmp_path,
    )
    assert "nobody dealt with this: mesh 'child'" in done.stderr
    assert (done.returncode, done.stdout) == (1, "" if held else "registered\n")


@pytest.mark.slow
def test_a_program_that_puts_its_own_hook_there_goes_on(tmp_path):
    done = run(
        """
        import os, queue, signal
        import slurmmesh as sm

        class Child(sm.Actor):
            @sm.endpoint
            def fail(self):
                raise RuntimeError("broken")

        found = queue.Queue()
        sm.unhandled_fault_hook = found.put
        child = sm.this_host().spawn_procs(name="procs").spawn("child", Child)
        child.fail.broadcast()
        print(found.get(timeout=60).mesh_name)
        """,
        tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, "child\n")


def test_an_owner_that_dies_while_it_is_told_climbs_itself(procs, faults, wait_until):
    top = procs.spawn("top", Owner)
    pids = top.spawn_below.call_one("handle").get(60)
    middle = top.middle_pid.call_one().get(60)
    os.kill(pids[0], signal.SIGKILL)
    os.kill(middle, signal.SIGKILL)
    ((name, _, _),) = told(top, wait_until)
    assert name == "middle"
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))

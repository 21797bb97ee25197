"""The injector: in virtual time, and against real processes."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time

import pytest

from slurmmesh import telemetry
from slurmmesh.errors import UsageError
from slurmmesh.faults import Injector, Target, parse_all


def target(replica, ready=True, pid=0):
    return Target(replica, f"replica{replica}", 0, "node0", pid or 1000 + replica, ready)


class Stage:
    """Virtual time, targets and a record of all that was done.

    A target that is hit is replaced at once, unless ``on_fire`` says otherwise.
    """

    def __init__(self, replicas: int = 3, until_s: float = 10.0) -> None:
        self.now = 100.0
        self.end = self.now + until_s
        self.targets = [target(r) for r in range(replicas)]
        self.done: list[tuple] = []
        self.on_wait = lambda: None
        self.on_fire = self.replace
        self.pids = 2000

    def wait(self, seconds: float) -> bool:
        assert seconds >= 0
        self.now = min(self.now + seconds, self.end)
        self.on_wait()
        return self.now >= self.end

    def emit(self, kind: str, **fields: object) -> None:
        self.done.append((kind, self.now - 100.0, fields))

    def fire(self, hit: Target, signum: int) -> None:
        self.done.append(("fire", self.now - 100.0, {"target": hit, "signum": signum}))
        self.on_fire()

    def replace(self) -> None:
        victim = self.done[-1][2]["target"].replica
        self.pids += 1
        self.targets[victim] = target(victim, pid=self.pids)

    def run(self, plans: str = "kill@3s", **options: object) -> Injector:
        injector = Injector(
            parse_all(plans),
            len(self.targets),
            lambda: self.targets,
            self.fire,
            emit=self.emit,
            clock=lambda: self.now,
            wait=self.wait,
            **options,
        )
        injector.start()
        injector._thread.join(20)
        assert not injector._thread.is_alive()
        return injector

    def kinds(self) -> list[tuple[str, float]]:
        return [(kind, round(at, 3)) for kind, at, _ in self.done]


def test_each_shot_is_told_before_it_is_fired():
    stage = Stage()
    injector = stage.run()
    times = [("fault", 3.0), ("fire", 3.0), ("fault", 6.0), ("fire", 6.0), ("fault", 9.0)]
    assert stage.kinds() == [*times, ("fire", 9.0)]
    (_, _, told), (_, _, fired) = stage.done[:2]
    hit = fired["target"]
    assert fired["signum"] == signal.SIGKILL
    assert told == {
        "fault": "kill",
        "replica": hit.replica,
        "mesh": hit.mesh,
        "rank": 0,
        "host": "node0",
        "pid": hit.pid,
    }
    assert (injector.fired, injector.skipped) == (3, 0)


def test_who_is_not_ready_is_not_hit_and_that_is_told():
    stage = Stage()
    stage.targets = [target(0), target(1, ready=False), target(2, ready=False)]
    injector = stage.run()
    assert stage.kinds() == [("fault_skipped", at) for at in (3.0, 6.0, 9.0)]
    assert stage.done[0][2]["reason"] == "only 1 ready, and 1 must be left to heal from"
    assert (injector.fired, injector.skipped) == (0, 3)


def test_a_shot_that_went_to_another_says_so():
    stage = Stage(until_s=61)
    stage.targets[2] = target(2, ready=False)
    stage.run()
    faults = [fields for kind, _, fields in stage.done if kind == "fault"]
    assert {fields["replica"] for fields in faults} == {0, 1}
    assert {fields.get("meant_for") for fields in faults} == {None, 2}


def test_the_seed_decides_the_victims():
    def victims(seed: int) -> list[int]:
        stage = Stage(until_s=60)
        stage.run(seed=seed)
        return [fields["replica"] for kind, _, fields in stage.done if kind == "fault"]

    assert victims(1) == victims(1)
    assert len({tuple(victims(seed)) for seed in range(5)}) == 5


def test_a_signal_that_cannot_be_sent_is_told_and_not_counted():
    stage = Stage()

    def gone() -> None:
        raise ProcessLookupError("no such process")

    stage.on_fire = gone
    injector = stage.run()
    assert [kind for kind, _ in stage.kinds()] == ["fault", "fire", "fault_failed"] * 3
    assert stage.done[2][2]["error"] == "ProcessLookupError: no such process"
    assert injector.fired == 0


def test_targets_that_are_not_known_skip_the_shot():
    stage = Stage()
    stage.targets = None
    injector = Injector(
        parse_all("kill@3s"),
        2,
        lambda: 1 / 0,
        stage.fire,
        emit=stage.emit,
        clock=lambda: stage.now,
        wait=stage.wait,
    )
    injector.start()
    injector._thread.join(20)
    assert stage.kinds() == [("fault_skipped", at) for at in (3.0, 6.0, 9.0)]
    assert "division by zero" in stage.done[0][2]["reason"]


def test_no_burst_after_the_process_was_suspended():
    stage = Stage(until_s=100.0)
    waits = iter([0.0, 50.5])

    def suspended() -> None:
        stage.now += next(waits, 0.0)

    stage.on_wait = suspended
    stage.run("kill@10s")
    fired = [at for kind, at in stage.kinds() if kind == "fire"]
    # The wait for the shot of 20 s ended at 70.5; those of 30 to 60 are gone, 70 is just due.
    assert fired == [10.0, 70.5, 70.5, 80.0, 90.0]


def test_a_slow_shot_does_not_shift_the_schedule():
    stage = Stage(until_s=20.0)

    def slow() -> None:
        stage.now += 1.0
        stage.replace()

    stage.on_fire = slow
    stage.run("kill@3s")
    assert [at for kind, at in stage.kinds() if kind == "fire"] == [3.0, 6.0, 9.0, 12.0, 15.0, 18.0]


def test_a_victim_is_not_hit_again_before_its_death_is_known():
    """Two shots at one moment: the second must not take the last one to heal from."""
    stage = Stage(replicas=2)
    stage.on_fire = lambda: None
    stage.run("kill@6s,abort@6s")
    assert stage.kinds() == [("fault", 6.0), ("fire", 6.0), ("fault_skipped", 6.0)]


def test_a_victim_that_was_replaced_may_be_hit_again():
    stage = Stage(replicas=2, until_s=100)
    assert stage.run().fired == 33


def test_a_victim_that_survived_may_be_hit_again_once_it_was_away():
    """SIGTERM can be caught: the same process may leave and come back."""
    stage = Stage(replicas=1, until_s=16)
    stage.on_fire = lambda: None

    def away() -> None:
        stage.targets[0] = target(0, ready=stage.now != 109.0)

    stage.on_wait = away
    stage.run("term@3s", survivors=0)
    assert [kind for kind, _ in stage.kinds() if kind != "fire"] == [
        "fault",
        "fault_skipped",
        "fault_skipped",
        "fault",
        "fault_skipped",
    ]


@pytest.mark.parametrize(
    ("plans", "replicas", "options", "says"),
    [
        ("", 4, {}, "at least one plan"),
        ("kill@3s", 1, {}, "can never fire.*at least 2 are needed"),
        ("kill@3s", 0, {"survivors": 0}, "can never fire"),
        ("kill@3s", 3, {"survivors": 3}, "at least 4 are needed"),
    ],
)
def test_what_can_never_fire_is_refused(plans, replicas, options, says):
    with pytest.raises(UsageError, match=says):
        Injector(parse_all(plans), replicas, list, print, **options)


def test_stop_ends_the_thread_and_can_be_repeated():
    threads = threading.active_count()
    injector = Injector(parse_all("kill@1h"), 2, list, print)
    with injector:
        assert threading.active_count() == threads + 1
    assert threading.active_count() == threads
    injector.stop()


def test_stop_before_start_is_fine():
    injector = Injector(parse_all("kill@1h"), 2, list, print)
    injector.stop()
    assert (injector.fired, injector.skipped) == (0, 0)


def test_it_may_be_stopped_from_its_own_shot():
    stage = Stage(until_s=1000)
    injector = Injector(
        parse_all("kill@3s"),
        3,
        lambda: stage.targets,
        lambda *_: injector.stop(),
        emit=stage.emit,
        clock=lambda: stage.now,
        wait=stage.wait,
    )
    injector.start()
    injector._thread.join(20)
    assert stage.kinds() == [("fault", 3.0)]


@pytest.mark.parametrize("kind", ["kill", "segfault", "abort", "term"])
def test_real_processes_die_of_the_signal(kind):
    """Three processes, of which one is always left, however slowly deaths become known."""
    program = (
        "import resource, signal; resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); signal.pause()"
    )

    def start() -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-S", "-c", program])

    events: queue.Queue = queue.Queue()
    children = {replica: start() for replica in range(3)}
    telemetry.set_sink(events.put)
    try:
        injector = Injector(
            parse_all(f"{kind}@20ms"),
            3,
            lambda: [target(r, p.poll() is None, p.pid) for r, p in children.items()],
            lambda hit, signum: os.kill(hit.pid, signum),
        )
        with injector:
            for _ in range(2):
                event = events.get(timeout=30)
                assert event["kind"] == "fault", event
                victim = children[event["replica"]]
                assert victim.pid == event["pid"]
                victim.wait(30)
                assert victim.returncode == -injector._plans[0].signal
                assert event["t"] <= time.time()
        assert injector.fired >= 2
        assert any(p.poll() is None for p in children.values())
    finally:
        telemetry.set_sink(None)
        for child in children.values():
            child.kill()
            child.wait()

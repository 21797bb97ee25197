"""Whole runs on real processes, with real TorchFT, in which replicas die at the worst moments.

Collectives have a timeout of minutes here: a run that ends shows that nobody waited for it.
"""

from __future__ import annotations

import collections
import functools
import itertools
import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

import slurmmesh as sm
from slurmmesh.errors import ActorError, RestartBudgetSpent, SupervisionError, UsageError
from slurmmesh.recovery import RecoverySettings, RunResult, StateLost
from slurmmesh.supervision import Supervision
from tests.recovery import programs

cloudpickle.register_pickle_by_value(programs)
pytestmark = [pytest.mark.slow]

PATIENT = RecoverySettings(collective_timeout_s=600, timeout_s=120, join_timeout_s=120)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def hosts(outlives_tests, folder) -> Iterator[sm.HostMesh]:
    with outlives_tests(folder):
        made = sm.local_hosts(1, folder)
        yield made
        made.stop()


@pytest.fixture
def events(folder, hosts):
    """The events since the test began."""
    log = folder / "events.jsonl"
    before = len(log.read_text().splitlines())

    def read(kind: str) -> list[dict[str, Any]]:
        lines = log.read_text().splitlines()[before:]
        return [event for event in map(json.loads, lines) if event["kind"] == kind]

    return read


@pytest.fixture
def run(hosts):
    def start(function, *args, replicas: int = 3, **options) -> RunResult:
        options.setdefault("settings", PATIENT)
        return sm.recovery.train(function, *args, hosts=hosts, replicas=replicas, **options)

    return start


def train(*args, **options):
    return functools.partial(programs.train, *args, **options)


def assert_equal_weights(result: RunResult) -> None:
    prints = {value["fingerprint"] for value in result.values}
    assert len(prints) == 1, f"replicas ended with different weights: {result.values}"


def assert_healed(events, replica: int) -> dict[str, Any]:
    """The replica died and came back; returns its recovery."""
    recovered = [event for event in events("recovered") if event["replica"] == replica]
    assert recovered
    assert all(event["signal"] == "SIGKILL" for event in recovered)
    return recovered[-1]


def test_without_faults_all_replicas_end_equal(run, events):
    result = run(train(), 20)
    assert_equal_weights(result)
    assert (result.steps, result.deaths, result.left_out) == (20, 0, ())
    assert {event["participants"] for event in events("step")} == {3}
    started, ended = events("run_started")[0], events("run_ended")[0]
    assert started["replicas"] == 3
    assert ended["status"] == "finished"
    assert [event["device"] for event in events("replica_started")] == ["cpu"] * 3


def test_nothing_listens_on_other_networks(run, folder):
    result = run(programs.listen, str(folder / "events.jsonl"))
    loopback = "0100007F"
    assert all(value == [loopback] for value in result.values)


def test_the_first_quorum_is_one_of_all(run, events):
    run(train(), 5, replicas=4)
    assert all(event["participants"] == 4 for event in events("quorum"))


def test_a_killed_replica_heals_before_it_trains(run, events):
    result = run(train(die_at={1: 8}), 25)
    assert_equal_weights(result)
    assert (result.deaths, result.recovered) == (1, 1)
    assert_healed(events, 1)
    back = result.values[1]
    assert back["incarnation"] == 1
    assert back["begun_at"] >= 8  # no step on weights of its own
    phases = [event["phase"] for event in events("recovery")]
    assert phases == [
        "died",
        "detected",
        "decided",
        "respawned",
        "rendezvoused",
        "healed",
        "stepped",
    ]
    healed_from = [e["healed_from"] for e in events("quorum") if e["replica"] == 1 and e["step"]]
    assert healed_from[0] in (0, 2)


def test_no_batch_is_committed_twice_and_none_is_left_out(run):
    result = run(train(die_at={1: 5, 2: 11}), 20)
    batches = [number for value in result.values for number in value["trained"]]
    assert len(set(batches)) == len(batches)
    survivor = result.values[0]["trained"]
    assert sorted(survivor.values()) == list(range(20))


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_in_the_middle_of_a_ddp_allreduce(run, events, victim):
    result = run(train(tweak=programs.die_in_ddp_allreduce(victim, 6)), 15)
    assert_equal_weights(result)
    assert_healed(events, victim)


@pytest.mark.parametrize("victim", [0, 2])
def test_a_death_in_the_middle_of_a_diloco_allreduce(run, events, victim):
    result = run(train(sync_every=5, tweak=programs.die_in_allreduce(victim, 2)), 6)
    assert_equal_weights(result)
    assert result.deaths == 1
    assert result.steps == 6
    # The survivors' inner steps were not thrown away: each sync took its five, once.
    survivor = 1
    inner = [e["step"] for e in events("inner_step") if e["replica"] == survivor]
    assert [inner.count(sync) for sync in range(6)] == [5] * 6


def test_diloco_lets_a_restarted_replica_in_between_two_syncs(run, events, tmp_path):
    result = run(train(sync_every=100, die_at={1: 1}, until_back=str(tmp_path / "back")), 3)
    assert_equal_weights(result)
    back = [e for e in events("inner_step") if e["replica"] == 1 and e["step"] == 1]
    assert 0 < len(back) < 100  # it took what was left of the window it died in
    assert_healed(events, 1)


def test_diloco_gives_one_killed_in_the_last_window_a_share_in_the_last_sync(run, events):
    result = run(train(sync_every=4, die_at={1: 3}, die_inner=3), 4)
    assert_equal_weights(result)
    assert_healed(events, 1)
    last = [e for e in events("step") if e["replica"] == 1][-1]
    assert (last["step"], last["participating"], last["committed"]) == (4, True, True)


def test_a_death_while_healing(run, events):
    tweak = programs.die_while_healing(1, times=2)
    result = run(train(die_at={1: 4}, tweak=tweak, pause_s=0.02), 30)
    assert_equal_weights(result)
    assert result.deaths == result.recovered == 3
    assert result.values[1]["incarnation"] == 3


def test_the_donor_dies_while_it_serves(run, tmp_path):
    tweak = programs.donor_dies_while_serving(str(tmp_path / "served"))
    result = run(train(die_at={1: 4}, tweak=tweak, pause_s=0.02), 30)
    assert (tmp_path / "served").exists()
    assert_equal_weights(result)
    assert result.deaths == 2
    assert result.recovered == 2


def test_a_death_while_the_new_quorum_connects(run):
    tweak = programs.die_at_rendezvous(1)
    result = run(train(die_at={1: 4}, tweak=tweak, pause_s=0.02), 30)
    assert_equal_weights(result)
    assert result.deaths == 2


def test_two_replicas_die_at_once(run):
    result = run(train(die_at={0: 6, 2: 6}, pause_s=0.01), 25)
    assert_equal_weights(result)
    assert result.deaths == 2


class KillerInTurn(threading.Thread):
    """Kills replica 0, and 1 the moment that 0 is started again; anew when both train again."""

    def __init__(self, log: Path, rounds: int, marker: Path) -> None:
        super().__init__()
        self._rounds, self._marker = rounds, marker
        self._stopped = threading.Event()
        self._pids: dict[str, int] = {}
        self._counts: collections.Counter[tuple[str, int]] = collections.Counter()
        self._log = log.open()
        self._log.seek(0, os.SEEK_END)

    def run(self) -> None:
        with self._log:
            for number in range(self._rounds):
                done = "recovered" if number else "step"
                if not self._wait(done, 0, number or 1) or not self._wait(done, 1, number or 1):
                    return
                os.kill(self._pids["replica0"], signal.SIGKILL)
                if not self._wait("replica_started", 0, number + 2):
                    return
                os.kill(self._pids["replica1"], signal.SIGKILL)
            self._marker.touch()

    def stop(self) -> None:
        self._stopped.set()
        self.join()

    def _wait(self, kind: str, replica: int, count: int) -> bool:
        """Read the log until there are so many such events; false if stopped before."""
        rest = ""
        while self._counts[kind, replica] < count:
            rest += self._log.readline()
            if not rest.endswith("\n"):
                if self._stopped.wait(0.001):
                    return False
                continue
            event, rest = json.loads(rest), ""
            self._counts[event["kind"], event.get("replica", -1)] += 1
            if event["kind"] == "proc_up":
                self._pids[event["mesh"]] = event["pid"]
        return True


@pytest.mark.parametrize(("steps", "sync_every"), [(300, 1), (60, 5)])
def test_a_replica_that_dies_just_when_another_is_back_stops_nobody(
    run, events, folder, tmp_path, steps, sync_every
):
    # The restarts are faster than the Lighthouse misses the dead: its quorums may hold them.
    settings = RecoverySettings(
        collective_timeout_s=600, connect_timeout_s=60, join_timeout_s=120, timeout_s=120
    )
    marker = tmp_path / "enough"
    killer = KillerInTurn(folder / "events.jsonl", 4, marker)
    killer.start()
    try:
        function = train(sync_every=sync_every, slow_until=str(marker))
        result = run(function, steps, settings=settings)
    finally:
        killer.stop()
    assert_equal_weights(result)
    assert result.deaths == result.recovered == 8
    # Nobody waited for a peer until a timeout.
    times = sorted(event["t"] for event in events("step"))
    assert max(b - a for a, b in itertools.pairwise(times)) < settings.connect_timeout_s / 2


def test_a_large_state_is_healed(run, events):
    result = run(train(die_at={1: 3}, width=200_000), 8, replicas=2)  # 10 MB, 30 with AdamW
    assert_equal_weights(result)
    assert_healed(events, 1)


def test_one_killed_before_the_last_step_takes_it_with_the_others(run, events):
    result = run(train(die_at={1: 9}), 10)
    assert result.left_out == ()
    assert_equal_weights(result)
    assert_healed(events, 1)


def test_one_that_comes_back_too_late_is_left_out(run, events, folder):
    result = run(programs.late, 8, str(folder / "events.jsonl"))
    assert result.left_out == (1,)
    assert result.values[1] is None
    assert events("run_ended")[0]["left_out"] == [1]
    finished = {result.values[0]["fingerprint"], result.values[2]["fingerprint"]}
    assert len(finished) == 1


def test_the_lighthouse_is_killed_and_comes_back(run, events, folder):
    tweak = programs.kill_at(10, str(folder / "events.jsonl"), "lighthouse_up")
    result = run(train(tweak=tweak), 30)
    assert_equal_weights(result)
    assert result.deaths == 0
    addresses = [event["address"] for event in events("lighthouse_up")]
    assert len(addresses) == 2
    assert len(set(addresses)) == 1
    assert len(events("lighthouse_exited")) == 1


def test_replicas_of_several_processes(run, events):
    result = run(programs.in_group, 15, replicas=2, procs_per_replica=2)
    assert_equal_weights(result)
    assert all(value["mean"] == pytest.approx(value["fingerprint"]) for value in result.values)
    assert result.deaths == 1
    assert_healed(events, 0)


def test_when_a_host_is_lost_the_others_train_on(tmp_path):
    hosts = sm.local_hosts(2, tmp_path)
    try:
        tweak = programs.kill_at(5, str(tmp_path / "events.jsonl"), "host_up", host=1)
        result = sm.recovery.train(
            train(tweak=tweak),
            15,
            hosts=hosts,
            replicas=4,
            settings=PATIENT,
        )
    finally:
        hosts.stop()
    assert result.left_out == (2, 3)
    assert result.steps == 15
    assert result.values[0]["fingerprint"] == result.values[1]["fingerprint"]


# ---------------------------------------------------------------------------- what ends a run


def test_what_cannot_be_imported_ends_the_run_by_its_name(run, events):
    with pytest.raises(SupervisionError, match=r"could not be started.*no_such_module_xyz"):
        run(train(), 5, preload=["no_such_module_xyz"])
    assert events("run_ended")[0]["status"] == "failed"


def test_a_lighthouse_whose_port_was_taken_ends_the_run_with_one_error(run, events, folder):
    tweak = programs.take_the_lighthouses_port(3, str(folder / "events.jsonl"))
    with pytest.raises(SupervisionError, match=r"the Lighthouse cannot listen on .*port"):
        run(train(tweak=tweak), 1000)
    assert len(events("lighthouse_exited")) == 1


def test_a_mistake_in_the_users_code_ends_the_run_with_its_traceback(run, events):
    with pytest.raises(ActorError, match="the data has a hole") as caught:
        run(programs.fail_at, 20, 3)
    assert "fail_at" in caught.value.exception_formatted
    assert isinstance(caught.value.exception, ValueError)
    ended = events("run_ended")[0]
    assert ended["status"] == "failed"
    assert "the data has a hole" in ended["error"]
    assert not events("proc_restarted")


def test_leaving_by_sys_exit_is_a_mistake(run):
    with pytest.raises(ActorError, match=r"left by sys.exit\(3\)"):
        run(programs.leave, "exit")


def test_a_failing_device_or_network_is_a_death(run, events):
    result = run(programs.leave, "device")
    assert result.deaths == 1
    exited = [event for event in events("proc_exited") if not event["expected"]]
    assert exited[0]["exit_code"] == 70
    assert any("the link is down" in line for line in exited[0]["stderr"])


def test_a_spent_restart_budget_ends_the_run(run, events):
    with pytest.raises(RestartBudgetSpent, match=r"replica 0 died more than 2 times .* SIGKILL"):
        run(programs.always_die, restarts=Supervision("one_for_all", 2, 60))
    assert events("run_ended")[0]["status"] == "failed"


def test_losing_all_replicas_at_once_is_told(run, tmp_path):
    with pytest.raises(StateLost, match="all 2 replicas were down at one time"):
        run(programs.all_die, str(tmp_path / "now"), replicas=2)


def test_faults_need_someone_to_heal_from(run):
    with pytest.raises(UsageError, match="at least 2 replicas are needed"):
        run(train(), 5, replicas=1, faults=sm.faults.Faults.parse("kill@3s"))


def test_what_cannot_travel_is_refused_before_anything_starts(run, events):
    with pytest.raises(UsageError, match="cannot be sent to the replicas"):
        run(programs.leave, (each for each in ()))
    assert not events("procs_spawned")


def test_more_replicas_than_the_hosts_take_are_refused(run, events):
    with pytest.raises(UsageError, match="do not fit"):
        run(train(), 5, replicas=9, procs_per_host=8)
    assert not events("run_started")
    assert not events("procs_spawned")


def test_injected_faults_are_healed(run, events):
    result = run(train(pause_s=0.03), 120, faults=sm.faults.Faults.parse("kill@1s", seed=4))
    assert_equal_weights(result)
    faults = events("fault")
    assert len(faults) >= 2
    assert result.deaths == result.recovered == len(faults)
    pids = {event["pid"] for event in faults}
    dead = {event["pid"] for event in events("proc_exited") if not event["expected"]}
    assert pids == dead

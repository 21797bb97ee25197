"""The figures, against a simulation that knows them and by hand."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_runs import simulate

from slurmmesh.telemetry.history import RunHistory, fold
from slurmmesh.telemetry.outages import Timeline
from slurmmesh.telemetry.summary import percentile, spread, summarize

FIELDS = {
    *("steps", "replicas", "faults", "recovered", "full_restarts", "final_loss", "first_loss"),
    *("replica_availability", "survivor_stall_s", "replica_back_s", "job_id", "mode"),
    *("sync_every", "seed", "wall_s", "cluster", "nodes", "status", "phases"),
}


def event(t: float, kind: str, **rest: Any) -> dict[str, Any]:
    return {"t": t, "kind": kind, **rest}


def steps(replica: int, *times: float, first: int = 1) -> list[dict[str, Any]]:
    return [
        event(t, "step", replica=replica, step=first + position, loss=1.0, participating=True)
        for position, t in enumerate(times)
    ]


def by_time(*parts: list[dict[str, Any]]) -> RunHistory:
    return fold(sorted((item for part in parts for item in part), key=lambda item: item["t"]))


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=30))
def test_percentiles_interpolate_like_the_standard_library(values: list[float]) -> None:
    cuts = statistics.quantiles(values, n=100, method="inclusive")
    for percent in (50, 95, 99):
        assert percentile(values, percent) == pytest.approx(cuts[percent - 1])


def test_percentiles_of_few_values() -> None:
    assert spread([]) == {"p50": None, "p95": None, "p99": None, "n": 0}
    assert spread([3.0]) == {"p50": 3.0, "p95": 3.0, "p99": 3.0, "n": 1}
    assert percentile([1.0, 2.0], 50) == 1.5


@pytest.mark.parametrize("mode", ["ddp", "diloco"])
@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_the_figures_are_those_of_the_simulation(seed: int, mode: str, killed: bool) -> None:
    truth = simulate(seed, mode=mode, killed=killed)
    summary = summarize(fold(truth.events))
    assert set(summary) == FIELDS
    assert summary["survivor_stall_s"]["n"] == len(truth.stalls)
    assert summary["survivor_stall_s"]["p50"] == pytest.approx(
        statistics.median(truth.stalls), abs=1e-5
    )
    assert summary["replica_back_s"] == pytest.approx(spread(truth.back), abs=1e-5)
    assert summary["wall_s"] == pytest.approx(truth.wall_s, abs=1e-5)
    assert summary["replica_availability"] == pytest.approx(
        1 - truth.down_s / (4 * truth.wall_s), abs=1e-5
    )
    assert summary["recovered"] == len(truth.back)
    assert summary["phases"]["detect_s"]["n"] == len(truth.back)
    assert summary["full_restarts"] == 0
    assert summary["status"] == ("unfinished" if killed else "finished")
    assert summary["first_loss"] > summary["final_loss"]


def test_an_empty_log_has_figures_too() -> None:
    summary = summarize(RunHistory())
    assert set(summary) == FIELDS
    assert summary["status"] == "no run"
    assert summary["steps"] == summary["faults"] == summary["replicas"] == 0
    assert summary["final_loss"] is None
    assert summary["replica_availability"] is None


def test_a_replica_that_never_came_back_is_down_to_the_end() -> None:
    history = by_time(
        [event(0, "run_started", replicas=2), event(10, "run_ended", status="finished")],
        steps(0, 1, 2, 3, 4, 9),
        steps(1, 1, 2),
        [event(5, "fault", fault="kill", replica=1)],
    )
    summary = summarize(history)
    assert (summary["faults"], summary["recovered"]) == (1, 0)
    assert summary["replica_availability"] == 0.75
    assert summary["survivor_stall_s"] == spread([4.0])
    assert summary["replica_back_s"]["n"] == 0


def test_two_faults_on_one_replica_make_one_outage() -> None:
    history = by_time(
        [event(0, "run_started", replicas=2), event(10, "run_ended", status="finished")],
        steps(0, 1, 2, 3, 4, 5, 6, 9),
        steps(1, 1, 8),
        [event(2.5, "fault", fault="kill", replica=1), event(4, "fault", fault="kill", replica=1)],
    )
    assert Timeline(history).outages == {1: [(2.5, 8)]}
    summary = summarize(history)
    assert summary["recovered"] == 2
    assert summary["replica_back_s"] == spread([5.5, 4.0])
    assert summary["replica_availability"] == pytest.approx(1 - 5.5 / 20)


def test_a_survivor_that_goes_down_itself_is_no_sample() -> None:
    history = by_time(
        [event(0, "run_started", replicas=3), event(10, "run_ended", status="finished")],
        steps(0, 1, 6),
        steps(1, 1, 7),
        steps(2, 1, 8),
        [event(2, "fault", fault="kill", replica=1), event(3, "fault", fault="kill", replica=2)],
    )
    first, second = Timeline(history).outcomes
    assert first.stalls == {0: 4.0}
    assert second.stalls == {0: 3.0}
    assert summarize(history)["full_restarts"] == 0


def test_a_replica_that_never_committed_is_no_survivor() -> None:
    history = by_time(steps(0, 1, 4), steps(1, 3), [event(2, "fault", fault="kill", replica=0)])
    (outcome,) = Timeline(history).outcomes
    assert outcome.stalls == {}


def test_a_commit_between_the_fault_and_the_death_is_no_return() -> None:
    history = by_time(
        steps(0, 1, 5, 6),
        steps(1, 1, 2.001, 6),
        [
            event(2, "fault", fault="kill", replica=1, mesh="m", rank=0, pid=7),
            event(2.002, "proc_exited", mesh="m", rank=0, pid=7, signal=9),
        ],
    )
    (outcome,) = Timeline(history).outcomes
    assert outcome.back_s == 4.0


def test_a_commit_without_taking_part_is_no_return() -> None:
    history = by_time(
        steps(0, 1, 2, 6, 7),
        steps(1, 1, 7),
        [
            event(2.5, "fault", fault="kill", replica=1),
            event(6, "step", replica=1, step=3, loss=9.0, participating=False),
        ],
    )
    assert summarize(history)["replica_back_s"] == spread([4.5])


def test_a_death_nobody_injected_is_an_outage_too() -> None:
    history = by_time(
        [event(0, "run_started", replicas=2), event(10, "run_ended", status="finished")],
        steps(0, 1, 2, 6),
        steps(1, 1, 6),
        [event(4, "recovery", recovery=0, replica=1, phase="died")],
    )
    assert Timeline(history).outages == {1: [(4, 6)]}
    assert summarize(history)["faults"] == 0
    assert summarize(history)["replica_availability"] == 0.9


def test_all_replicas_down_at_once_is_a_full_restart() -> None:
    def died(t: float, recovery: int, replica: int) -> dict[str, Any]:
        return event(t, "recovery", recovery=recovery, replica=replica, phase="died")

    both = by_time(steps(0, 1, 9), steps(1, 1, 9), [died(2, 0, 0), died(3, 1, 1)])
    assert summarize(both)["full_restarts"] == 1
    healed = [event(2.5, "recovery", recovery=0, replica=0, phase="healed")]
    in_turn = by_time(steps(0, 1, 9), steps(1, 1, 9), [died(2, 0, 0), died(3, 1, 1)], healed)
    assert summarize(in_turn)["full_restarts"] == 0
    at_the_end = by_time(steps(0, 1), steps(1, 1), [died(2, 0, 0), died(3, 1, 1)])
    assert summarize(at_the_end)["full_restarts"] == 0


def test_the_final_loss_is_the_mean_of_the_last_ten_steps() -> None:
    log = [
        event(number, "step", replica=replica, step=number, loss=float(number + replica))
        for number in range(1, 21)
        for replica in (0, 2)
    ]
    away = [event(20.5, "step", replica=1, step=20, loss=99.0, participating=False)]
    summary = summarize(fold([*log, *away]))
    assert summary["final_loss"] == pytest.approx(statistics.mean(range(11, 21)) + 1)
    assert summary["first_loss"] == 2.0
    assert summary["steps"] == 20


def test_a_loss_that_diverged_is_not_averaged_away() -> None:
    log = steps(0, 1, 2, 3)
    log[2]["loss"] = math.nan
    summary = summarize(fold(log))
    assert summary["first_loss"] == 1.0
    assert summary["final_loss"] is None


def test_without_a_step_there_is_no_final_loss() -> None:
    log = [event(1, "run_started", replicas=2), event(2, "run_ended", status="finished")]
    assert summarize(fold(log))["final_loss"] is None


def test_participation_steps_down_and_up() -> None:
    history = by_time(
        [event(0, "run_started", replicas=2), event(10, "run_ended", status="finished")],
        steps(0, 1, 2, 6),
        steps(1, 1, 6),
        [event(4, "fault", fault="kill", replica=1)],
    )
    assert Timeline(history).participation == [(0, 0), (1, 2), (4, 1), (6, 2), (10, 2)]
    assert Timeline(history).lanes == {0: [(1, 10)], 1: [(1, 4), (6, 10)]}

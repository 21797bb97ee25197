"""Folding events into a history, good ones and bad ones."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from synthetic_runs import simulate
from wild_events import events

from slurmmesh.telemetry.history import RunHistory, fold
from slurmmesh.telemetry.narrate import Narrator
from slurmmesh.telemetry.outages import Timeline
from slurmmesh.telemetry.phases import DURATIONS, PHASES
from slurmmesh.telemetry.summary import summarize


def check(history: RunHistory) -> None:
    """What must hold for every history, whatever made it."""
    summary = summarize(history)
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary
    availability = summary["replica_availability"]
    assert availability is None or 0 <= availability <= 1
    assert 0 <= summary["recovered"] <= summary["faults"]
    assert summary["full_restarts"] >= 0
    for spread in (
        summary["survivor_stall_s"],
        summary["replica_back_s"],
        *summary["phases"].values(),
    ):
        figures = [spread["p50"], spread["p95"], spread["p99"]]
        if spread["n"] == 0:
            assert figures == [None, None, None]
        else:
            assert 0 <= figures[0] <= figures[1] <= figures[2]
    timeline = Timeline(history)
    for _, count in timeline.participation:
        assert 0 <= count <= history.run.size
    for spans in timeline.outages.values():
        ends = [end for span in spans for end in span]
        assert None not in ends[:-1]
        assert ends[: -1 if ends[-1] is None else None] == sorted(
            end for end in ends if end is not None
        )


@settings(max_examples=200, deadline=None)
@given(st.lists(events(), max_size=25))
def test_no_sequence_of_events_raises(log: list[dict[str, Any]]) -> None:
    history = RunHistory()
    narrator = Narrator(history)
    for event in log:
        history.add(event)
        line = narrator.tell(event)
        assert line is None or line.isprintable()
        narrator.progress()
    check(history)


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 50),
    st.sampled_from(["ddp", "diloco"]),
    st.integers(2, 6),
    st.floats(0.4, 5),
    st.floats(0, 1),
)
def test_every_prefix_of_a_log_has_a_history(
    seed: int, mode: str, replicas: int, fault_every: float, share: float
) -> None:
    log = simulate(seed, replicas, 30, mode, fault_every).events
    check(fold(log[: round(len(log) * share)]))


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 20), st.randoms(use_true_random=False))
def test_the_figures_do_not_depend_on_the_order_between_replicas(seed: int, rng: Any) -> None:
    log = simulate(seed).events
    begin, end = log[:8], log[-1:]
    streams: dict[Any, list[dict[str, Any]]] = {}
    for event in log[8:-1]:
        streams.setdefault(event.get("replica"), []).append(event)
    mixed = []
    while streams:
        key = rng.choice(list(streams))
        mixed.append(streams[key].pop(0))
        if not streams[key]:
            del streams[key]
    assert summarize(fold([*begin, *mixed, *end])) == summarize(fold(log))


def test_series_faults_and_recoveries_are_kept() -> None:
    history = fold(simulate(steps=30, fault_every=2.0).events)
    run = history.run
    assert run.mode == "ddp"
    assert [step.step for step in run.replicas[0].steps] == sorted(
        {step.step for step in run.replicas[0].steps}
    )
    assert len(run.faults) == len(run.recoveries) == 2
    recovery = run.recoveries[0]
    assert tuple(recovery.times) == PHASES
    assert recovery.signal == "SIGKILL"
    assert recovery.complete
    assert sum(recovery.duration(name) or 0 for name in DURATIONS) == pytest.approx(
        recovery.duration("total_s")
    )
    assert run.quorums[-1].quorum == 5
    assert {replica.state for replica in run.replicas.values()} == {"finished"}
    assert history.exit_code == 0
    assert history.proc_count == 4


def test_diloco_keeps_the_inner_steps() -> None:
    run = fold(simulate(mode="diloco", steps=4, fault_every=None).events).run
    assert run.sync_every == 5
    assert len(run.replicas[2].inner) == 20


def test_durations_come_from_the_phases_where_they_are_not_told() -> None:
    history = fold(
        {
            "t": 10.0 + position * position,
            "kind": "recovery",
            "recovery": 3,
            "replica": 1,
            "phase": p,
        }
        for position, p in enumerate(PHASES)
    )
    recovery = history.run.recoveries[3]
    assert [recovery.duration(name) for name in DURATIONS] == [1, 3, 5, 7, 9, 11]
    assert recovery.duration("total_s") == 36


def test_a_clock_that_is_behind_makes_no_negative_duration() -> None:
    history = fold(
        [
            {"t": 10.0, "kind": "recovery", "recovery": 0, "replica": 1, "phase": "died"},
            {"t": 9.9, "kind": "recovery", "recovery": 0, "replica": 1, "phase": "detected"},
        ]
    )
    assert history.run.recoveries[0].duration("detect_s") == 0
    assert history.run.recoveries[0].duration("decide_s") is None


def test_the_state_of_a_replica_follows_time_not_arrival() -> None:
    history = RunHistory()
    history.add({"t": 1.0, "kind": "step", "replica": 0, "step": 1})
    history.add({"t": 2.0, "kind": "fault", "fault": "kill", "replica": 0})
    history.add({"t": 1.9, "kind": "step", "replica": 0, "step": 2})
    assert history.run.replicas[0].state == "down"
    history.add({"t": 2.1, "kind": "recovery", "recovery": 0, "replica": 0, "phase": "respawned"})
    assert history.run.replicas[0].state == "respawned"
    history.add({"t": 2.2, "kind": "step", "replica": 0, "step": 3, "participating": False})
    assert history.run.replicas[0].state == "healing"
    history.add({"t": 2.3, "kind": "step", "replica": 0, "step": 4})
    assert history.run.replicas[0].state == "training"


def test_a_second_training_of_a_job_stands_alone() -> None:
    first, second = simulate(seed=1, steps=10), simulate(seed=2, steps=20, fault_every=None)
    history = fold([*first.events[:-1], *second.events[1:]])
    assert history.earlier_runs == 1
    assert history.job_starts == 1
    assert summarize(history)["seed"] == 2
    assert summarize(history)["steps"] == 20
    assert summarize(history)["full_restarts"] == 0


def test_a_job_that_slurm_started_again_goes_on_with_its_run() -> None:
    first = simulate(seed=1, steps=10, fault_every=None, killed=True)
    later = [{**event, "t": event["t"] + 30} for event in simulate(seed=1, steps=20).events]
    history = fold([*first.events, *later])
    assert history.earlier_runs == 0
    summary = summarize(history)
    assert summary["full_restarts"] == 1
    assert summary["wall_s"] > 30


def test_a_fault_that_could_not_be_fired_is_none() -> None:
    victim = {"fault": "kill", "replica": 1, "mesh": "m", "rank": 0, "host": "a", "pid": 7}
    run = fold(
        [
            {"t": 1.0, "kind": "fault", **victim},
            {"t": 2.0, "kind": "fault", **victim},
            {"t": 2.1, "kind": "fault_failed", "error": "no such process", **victim},
            {"t": 3.0, "kind": "fault_skipped", "fault": "kill", "replica": 0, "reason": "alone"},
        ]
    ).run
    assert [fault.t for fault in run.faults] == [1.0]
    assert [fault.reason for fault in run.skipped_faults] == ["no such process", "alone"]


@pytest.mark.parametrize(
    ("value", "name"),
    [(9, "SIGKILL"), ("SIGSEGV", "SIGSEGV"), (250, "signal 250"), (None, ""), ("", "")],
)
def test_a_signal_is_known_by_name_or_number(value: object, name: str) -> None:
    event = {"t": 1, "kind": "proc_exited", "mesh": "m", "rank": 0, "signal": value}
    assert fold([event]).exits[0].signal == name


def test_nonsense_is_counted_or_left_out() -> None:
    history = fold(
        [
            {},
            {"kind": "step"},
            {"t": "soon", "kind": "step"},
            {"t": math.inf, "kind": "step"},
            {"t": 1.0, "kind": 7},
            {"t": 1.0, "kind": "step"},
            {"t": 1.0, "kind": "step", "replica": -1, "step": 2},
            {"t": 1.0, "kind": "recovery", "recovery": 1, "replica": 0, "phase": "resurrected"},
            {"t": 1.0, "kind": "a kind of the future", "replica": 3},
        ]
    )
    assert history.malformed == 5
    assert history.run.replicas == {}
    assert not history.has_run


def test_a_wild_count_of_replicas_makes_no_table_of_that_size() -> None:
    history = fold([{"t": 1.0, "kind": "run_started", "replicas": 10**15}])
    assert len(history.run.replicas) <= 10_000
    assert history.run.size == 10**15

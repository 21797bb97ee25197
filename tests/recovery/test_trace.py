"""The trace of a recovery, with arbitrary orders and clocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.recovery.trace import RecoveryTracer
from slurmmesh.telemetry import DURATIONS, PHASES

times = st.floats(0, 1e6, allow_nan=False)


def phases_of(events) -> list[str]:
    return [fields["phase"] for kind, fields in events if kind == "recovery"]


def test_a_recovery_from_fault_to_step():
    tracer = RecoveryTracer()
    tracer.fault(pid=10, at=100.0)
    events = tracer.died(2, pid=10, signal="SIGKILL", at=100.02, seen_at=100.03)
    tracer.run_was_at(2, 41)
    tracer.run_was_at(2, 40)
    for phase, at in [("decided", 100.04), ("respawned", 100.1), ("rendezvoused", 100.3)]:
        events += tracer.reach(2, phase, at)
    events += tracer.reach(2, "healed", 100.35)
    events += tracer.reach(2, "stepped", 100.5, step=43)
    assert phases_of(events) == list(PHASES)
    kind, summary = events[-1]
    assert kind == "recovered"
    assert summary["replica"] == 2
    assert summary["signal"] == "SIGKILL"
    assert summary["steps_lost"] == 1
    assert summary["detect_s"] == pytest.approx(0.03)
    assert summary["total_s"] == pytest.approx(0.5)
    assert tracer.completed == 1


def test_without_a_fault_it_begins_when_the_host_saw_it():
    tracer = RecoveryTracer()
    events = tracer.died(0, pid=5, signal="SIGSEGV", at=7.0, seen_at=7.5)
    assert [fields["t"] for _, fields in events] == [7.0, 7.5]


def test_an_old_fault_of_the_same_pid_explains_nothing():
    tracer = RecoveryTracer()
    tracer.fault(pid=5, at=1.0)
    events = tracer.died(0, pid=5, signal="SIGKILL", at=100.0, seen_at=100.0)
    assert events[0][1]["t"] == 100.0


def test_who_is_not_on_its_way_back_has_no_trace():
    tracer = RecoveryTracer()
    assert tracer.reach(1, "healed", 3.0) == []
    tracer.died(1, pid=1, signal="SIGKILL", at=1.0, seen_at=1.0)
    tracer.give_up(1)
    assert tracer.reach(1, "stepped", 3.0, step=3) == []
    assert tracer.completed == 0


def test_a_second_death_on_the_way_begins_anew():
    tracer = RecoveryTracer()
    tracer.died(1, pid=1, signal="SIGKILL", at=1.0, seen_at=1.0)
    tracer.reach(1, "respawned", 2.0)
    second = tracer.died(1, pid=2, signal="SIGKILL", at=3.0, seen_at=3.0)
    assert {fields["recovery"] for _, fields in second} == {2}
    events = tracer.reach(1, "stepped", 4.0, step=1)
    assert events[-1][1]["recovery"] == 2
    assert tracer.completed == 2  # it is back from both


@given(st.permutations(PHASES[2:-1]), st.lists(times, min_size=7, max_size=7))
def test_no_duration_is_negative_and_they_add_up(order, at):
    tracer = RecoveryTracer()
    tracer.died(0, pid=1, signal="SIGKILL", at=at[0], seen_at=at[1])
    for phase, moment in zip(order, at[2:], strict=False):
        tracer.reach(0, phase, moment)
    kind, summary = tracer.reach(0, "stepped", at[6], step=9)[-1]
    assert kind == "recovered"
    assert summary["total_s"] >= 0
    if list(order) == list(PHASES[2:-1]):
        assert all(summary[name] >= 0 for name in DURATIONS)
    assert sum(summary[name] for name in DURATIONS) == pytest.approx(summary["total_s"])


@given(st.lists(st.sampled_from(PHASES[2:]), max_size=20))
def test_a_phase_is_told_once(phases):
    tracer = RecoveryTracer()
    events = tracer.died(0, pid=1, signal="SIGKILL", at=0.0, seen_at=0.0)
    for index, phase in enumerate(phases):
        events += tracer.reach(0, phase, float(index), step=1)
    told = phases_of(events)
    assert len(told) == len(set(told))

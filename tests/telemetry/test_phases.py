"""The arithmetic of a recovery's phases."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.telemetry.phases import DURATIONS, PHASES, durations

moments = st.floats(0, 1e9, allow_nan=False)


def test_each_duration_lies_between_two_phases():
    times = dict(zip(PHASES, (0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0), strict=True))
    assert durations(times) == {
        **dict(zip(DURATIONS, (1.0, 2.0, 3.0, 4.0, 5.0, 6.0), strict=True)),
        "total_s": 21.0,
    }


def test_a_phase_that_was_passed_over_took_no_time():
    known = durations({"died": 1.0, "respawned": 4.0})
    assert known == {"detect_s": 0.0, "decide_s": 0.0, "respawn_s": 3.0}


def test_what_is_not_reached_is_not_known():
    assert durations({}) == durations({"died": 1.0}) == {}


@given(st.dictionaries(st.sampled_from(PHASES), moments))
def test_none_is_negative(times):
    assert all(seconds >= 0 for seconds in durations(times).values())

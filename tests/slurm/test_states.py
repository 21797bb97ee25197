"""The states of jobs, in the words of all versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.slurm.states import JobState, parse_state


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ("RUNNING", JobState.RUNNING),
        ("running", JobState.RUNNING),
        ("CANCELLED by 54321", JobState.CANCELLED),
        ("CANCELLED+", JobState.CANCELLED),
        (" NODE_FAIL ", JobState.NODE_FAIL),
        (["COMPLETED"], JobState.COMPLETED),
        (["RUNNING", "COMPLETING"], JobState.COMPLETING),
        (["PENDING", "REQUEUED"], JobState.REQUEUED),
        (["NEW_WORD", "FAILED"], JobState.FAILED),
        ("NEW_WORD", JobState.UNKNOWN),
        ("", JobState.UNKNOWN),
        ([], JobState.UNKNOWN),
    ],
)
def test_parses(words: str | list[str], state: JobState) -> None:
    assert parse_state(words) is state


@given(st.one_of(st.text(), st.lists(st.text())))
def test_what_is_not_known_is_no_success(words: str | list[str]) -> None:
    state = parse_state(words)
    text = words if isinstance(words, str) else " ".join(words)
    assert not state.is_success or "COMPLETED" in text.upper()


def test_each_state_is_waiting_or_over_or_neither() -> None:
    assert not any(state.is_waiting and state.is_over for state in JobState)
    assert not JobState.UNKNOWN.is_over
    assert not JobState.COMPLETING.is_over
    assert [state for state in JobState if state.is_success] == [JobState.COMPLETED]

"""The states of jobs, in the words of all versions."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.slurm.states import JobState, parse_state

BASE_STATES = {
    *("PENDING", "RUNNING", "SUSPENDED", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT"),
    *("NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
}


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
        (["COMPLETED", "NEW_WORD"], JobState.UNKNOWN),
        (["STOPPED", "RUNNING"], JobState.RUNNING),
        (["RUNNING", "RESIZING", "SIGNALING"], JobState.RUNNING),
        (["CANCELLED", "REVOKED"], JobState.REVOKED),
        (["PENDING", "POWER_UP_NODE", "CONFIGURING"], JobState.CONFIGURING),
        (["FAILED", "EXPEDITING"], JobState.EXPEDITING),
        (["COMPLETED", "COMPLETING"], JobState.COMPLETING),
        (["FAILED", "LAUNCH_FAILED"], JobState.FAILED),
        (["PENDING", "SPECIAL_EXIT", "REQUEUE_HOLD"], JobState.REQUEUE_HOLD),
        ("RECONFIG_FAIL", JobState.RECONFIG_FAIL),
        ("UPDATE_DB", JobState.UNKNOWN),
        ("R", JobState.RUNNING),
        ("PD", JobState.PENDING),
        ("CG", JobState.COMPLETING),
        ("CD", JobState.COMPLETED),
        ("oom", JobState.OUT_OF_MEMORY),
        ("C", JobState.UNKNOWN),
        ("COMPLETEd", JobState.COMPLETED),
        ("CANCE\u0142LED", JobState.UNKNOWN),
        ("\ufb05", JobState.UNKNOWN),  # in capitals it is ST
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
    assert not state.is_success or "COMPLETED" in text.upper() or "CD" in text.upper()


WORD = st.sampled_from([state.value for state in JobState if state is not JobState.UNKNOWN])


@given(st.lists(WORD, min_size=1, max_size=4, unique=True), st.randoms())
def test_the_order_of_flags_does_not_matter(words: list[str], random: Random) -> None:
    """Of one base state and any flags: two base states at once are no state of Slurm's."""
    base = [word for word in words if word in BASE_STATES][:1]
    words = base + [word for word in words if word not in BASE_STATES]
    mixed = list(words)
    random.shuffle(mixed)
    flags = {"LAUNCH_FAILED", "RECONFIG_FAIL", "RESIZING", "SIGNALING", "STOPPED"}
    if len(flags.intersection(words)) < 2 or base:
        assert parse_state(mixed) is parse_state(words)
    if len(words) > len(base):
        assert not parse_state(mixed).is_success or flags.issuperset(words[len(base) :])


@given(st.lists(WORD, max_size=3), st.text(min_size=1))
def test_no_success_beside_what_is_not_known(words: list[str], word: str) -> None:
    if parse_state(word) is JobState.UNKNOWN:
        assert not parse_state([*words, word]).is_success


def test_each_state_is_waiting_or_over_or_neither() -> None:
    assert not any(state.is_waiting and state.is_over for state in JobState)
    assert not JobState.UNKNOWN.is_over
    assert not JobState.COMPLETING.is_over
    assert not JobState.REVOKED.is_over  # another cluster of the federation has it
    assert [state for state in JobState if state.is_success] == [JobState.COMPLETED]

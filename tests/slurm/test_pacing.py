"""How often Slurm is asked, in a time of the tests' own."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.slurm.pacing import RateLimit, back_off


def test_a_burst_then_the_rate() -> None:
    limit = RateLimit(per_second=2, burst=3)
    assert [limit.reserve(10.0) for _ in range(5)] == [0, 0, 0, 0.5, 1.0]
    assert limit.reserve(11.0) == 0.5
    assert [limit.reserve(100.0) for _ in range(4)] == [0, 0, 0, 0.5]


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.integers(1, 20), st.integers(1, 10))
def test_never_more_than_allowed_in_any_while(gaps: list[float], rate: int, burst: int) -> None:
    limit = RateLimit(rate, burst)
    calls = [now + limit.reserve(now) for now in itertools.accumulate(gaps)]
    assert calls == sorted(calls)
    for first, last in itertools.combinations(range(len(calls)), 2):
        count = last - first + 1
        assert count <= burst + (calls[last] - calls[first]) * rate + 1e-6


@given(st.lists(st.floats(0, 3), min_size=1, max_size=60), st.integers(1, 20))
def test_who_asks_seldom_never_waits(gaps: list[float], rate: int) -> None:
    limit = RateLimit(rate, burst=1)
    now = 0.0
    for gap in gaps:
        now += gap + 1.001 / rate
        assert limit.reserve(now) == 0


def test_pauses_grow_up_to_the_longest() -> None:
    full = list(itertools.islice(back_off(0.25, 8.0, lambda: 1.0), 8))
    assert full == [0.25, 0.5, 1, 2, 4, 8, 8, 8]
    assert next(back_off(1.0, 8.0, lambda: 0.0)) == 0.5


def test_pauses_differ_between_processes() -> None:
    first, second = back_off(1.0, 8.0), back_off(1.0, 8.0)
    assert list(itertools.islice(first, 5)) != list(itertools.islice(second, 5))

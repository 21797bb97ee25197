"""Ids of jobs, in all forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.slurm.ids import JobRef, parse_tasks


@pytest.mark.parametrize(
    ("text", "ref", "number", "asked"),
    [
        ("123", JobRef("123"), "123", "123"),
        (" 123\n", JobRef("123"), "123", "123"),
        ("123_4", JobRef("123_4"), "123", "123_4"),
        ("123_[1-3,7%2]", JobRef("123_[1-3,7]"), "123", "123"),
        ("123_[0-8:4,11]", JobRef("123_[0,4,8,11]"), "123", "123"),
        ("123+1", JobRef("123+1"), "123", "123"),
        ("123;cluster", JobRef("123", "cluster"), "123", "123"),
        ("123_4;cluster", JobRef("123_4", "cluster"), "123", "123_4"),
        ("123.0", JobRef("123"), "123", "123"),
        ("123.batch", JobRef("123"), "123", "123"),
        ("123_4.extern", JobRef("123_4"), "123", "123_4"),
        ("123+1.0", JobRef("123+1"), "123", "123"),
        ("123.0+1", JobRef("123"), "123", "123"),
        ("00123_04", JobRef("123_4"), "123", "123_4"),
    ],
)
def test_reads(text: str, ref: JobRef, number: str, asked: str) -> None:
    assert JobRef.parse(text) == ref
    assert (ref.number, ref.asked, ref.folder) == (number, asked, asked)
    assert JobRef.parse(str(ref)) == ref
    assert ref.options == (["-M", ref.cluster] if ref.cluster else [])


@pytest.mark.parametrize(
    "text",
    [
        *("", "0", "-1", "abc", "1 2", "12345678901", "٣", "123_", "123_x", "123_[]", "123_[3-1]"),
        *("123+", "123_4+1", "123;", "123;a b", "123;a;b", "123.", "123_[1-3", "123_[1-5000000]"),
        *("123_[1-9:0]", "123_[1,3,...]", "local-2026-1", "123 #SBATCH", "123\n4", "--all"),
    ],
)
def test_refuses(text: str) -> None:
    with pytest.raises(UsageError):
        JobRef.parse(text)


def test_says_that_a_list_was_cut_short() -> None:
    with pytest.raises(UsageError, match="cut short"):
        JobRef.parse("123_[1,3,5,...]")


def test_numbers_of_a_federation() -> None:
    assert not JobRef("67108863").is_federated  # the largest that a cluster gives by itself
    assert JobRef("67108864").is_federated
    assert JobRef("67108865_3", "c").is_federated


def test_tasks_and_components() -> None:
    assert JobRef("12").tasks is None
    assert JobRef("12_4").tasks == (4,)
    assert JobRef.parse("12_[0-8:4,11]").tasks == (0, 4, 8, 11)
    assert JobRef("12+1").component == 1
    assert JobRef("12").component is None


@pytest.mark.parametrize(
    ("ref", "other", "covered"),
    [
        ("12", "12", True),
        ("12", "12_3", True),
        ("12", "12+1", True),
        ("12", "13", False),
        ("12", "12;c", False),
        ("12;c", "12_3;c", True),
        ("12_3", "12", False),
        ("12_3", "12_4", False),
        ("12_[1-3]", "12_2", True),
        ("12_[1-3]", "12_4", False),
        ("12_[1-3]", "12+1", False),
        ("12+1", "12+0", False),
        ("12+1", "12+1", True),
    ],
)
def test_covers(ref: str, other: str, covered: bool) -> None:
    assert JobRef.parse(ref).covers(JobRef.parse(other)) is covered


@given(st.text())
def test_any_text_is_an_id_or_refused(text: str) -> None:
    try:
        ref = JobRef.parse(text)
    except UsageError:
        return
    assert ref.number.isascii()
    assert ref.number.isdigit()
    assert JobRef.parse(str(ref)) == ref


@given(
    st.integers(1, 2**26), st.lists(st.tuples(st.integers(0, 50), st.integers(0, 9)), min_size=1)
)
def test_lists_of_tasks(number: int, items: list[tuple[int, int]]) -> None:
    text = ",".join(f"{first}-{first + count}" if count else str(first) for first, count in items)
    tasks = [task for first, count in items for task in range(first, first + count + 1)]
    assert parse_tasks(text) == tuple(tasks)
    ref = JobRef.parse(f"{number}_[{text}]")
    assert all(ref.covers(JobRef(f"{number}_{task}")) for task in tasks)
    assert not ref.covers(JobRef(f"{number}_99"))

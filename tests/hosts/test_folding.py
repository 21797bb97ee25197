"""Similar lines as one: none lost in the numbers, the first of each kind shown, memory bounded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.hosts.folding import Dropped, Folded, Folder, Line


def line(text: str, rank: int = 0, mesh: str = "m", fd: int = 1) -> Line:
    return Line(mesh, rank, fd, 0.0, text)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("loss 0.25 at step 3", "loss -1.5e-3 at step 1,200"),
        ("rank 3 of 64 on gpu3", "rank 63 of 64 on gpu0"),
        ("tensor at 0x7fa3b1608b50", "tensor at 0xdead"),
        ("commit 3f2a9c01 loaded", "commit a9cc01f7 loaded"),
        ("id 3f2a9c01-00ab-4c5d", "id 912b11ff-1234-0a5d"),
        ("took 2024.5 ms", "took 1e10 ms"),
        ("10:25:57.123 [W] slow", "23:01:02.999 [W] slow"),
    ],
)
def test_numbers_addresses_and_hashes_do_not_tell_lines_apart(one: str, other: str) -> None:
    assert line(one, rank=1).kind == line(other, rank=7).kind


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (line("loss 1.0"), line("loss nan")),
        (line("decade"), line("facade")),
        (line("same"), line("same", mesh="n")),
        (line("same"), line("same", fd=2)),
    ],
)
def test_words_meshes_and_streams_do(one: Line, other: Line) -> None:
    assert one.kind != other.kind


def test_sixty_four_ranks_are_one_line() -> None:
    folder = Folder(3.0)
    for rank in range(64):
        assert folder.add(line(f"loaded {rank * 7} weights", rank), now=100.0 + rank / 100) == []
    assert folder.due == 103.0
    assert folder.take() == [Folded(line("loaded 0 weights"), 63)]
    assert folder.due is None
    assert folder.take() == []


def test_without_a_window_each_is_shown_at_once() -> None:
    folder = Folder(0)
    assert folder.add(line("a"), 0.0) == folder.add(line("a"), 0.0) == [Folded(line("a"))]


words = st.sampled_from(["a", "b 1", "b 2", "c 0x1", "c 0xff", "d", "rank 3", "rank 4"])
events = st.lists(
    st.one_of(
        st.tuples(st.just("line"), words, st.integers(0, 3)),
        st.tuples(st.just("drop"), st.integers(1, 9), st.integers(0, 3)),
        st.tuples(st.just("take"), st.none(), st.none()),
    ),
    max_size=60,
)


@given(events, st.integers(1, 4), st.sampled_from([0, 3.0]))
def test_no_line_is_lost_in_the_numbers(events: list, most: int, window: float) -> None:
    folder = Folder(window, most)
    came: list[Line] = []
    dropped = 0
    shown: list[Folded | Dropped] = []
    held_since: set[tuple[str, int, str]] = set()
    for now, (what, value, rank) in enumerate(events):
        if what == "line":
            each = line(value, rank)
            came.append(each)
            shown += folder.add(each, float(now))
            held_since.add(each.kind)
            assert len(folder._held) <= most
        elif what == "drop":
            folder.drop("m", rank, value, float(now))
            dropped += value
        else:
            shown += folder.take()
            assert folder.due is None
    shown += folder.take()
    lines = [each for each in shown if isinstance(each, Folded)]
    assert sum(1 + each.similar for each in lines) == len(came)
    assert sum(each.count for each in shown if isinstance(each, Dropped)) == dropped
    assert {each.line.kind for each in lines} == held_since
    # What is shown of a kind came first of those that it stands for.
    for kind in held_since:
        of_kind = [each for each in came if each.kind == kind]
        position = 0
        for each in (each for each in lines if each.line.kind == kind):
            assert each.line == of_kind[position]
            position += 1 + each.similar


def test_hostile_lines_take_no_time() -> None:
    for text in ("a-" * 1000, "a" * 2000, "1" * 2000, "1." * 1000, "0x" * 1000, "abcdef" * 300):
        line(text).kind  # noqa: B018  (it comes to an end)

"""What is under way: counted once, however often the news of its arrival comes."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.actors.backlog import Backlog, Counted
from slurmmesh.wire import Frame, Kind

RANKS = range(3)
MOST = 100


@given(data=st.data())
def test_each_marker_counts_until_it_has_arrived_and_once(data):
    """The news comes in any order, for some ranks at a time, and any of it once more."""
    backlog = Backlog(None, MOST)
    sizes = st.dictionaries(st.sampled_from(RANKS), st.integers(1, MOST), min_size=1)
    markers = [dict(each) for each in data.draw(st.lists(sizes, max_size=6))]
    left = [dict(each) for each in markers]
    for each in markers:
        backlog.mark(each)
    news = [(number, rank) for number, each in enumerate(left) for rank in each]
    again = data.draw(st.lists(st.sampled_from(news))) if news else []
    for number, rank in data.draw(st.permutations([*news, *again])):
        backlog.arrived(markers[number], [rank])
        left[number].pop(rank, None)
        for one in RANKS:
            under_way = sum(each.get(one, 0) for each in left)
            assert backlog.wait([one], 0) is (under_way < MOST)
    assert backlog.is_idle


def test_who_waits_is_woken_though_a_handler_raised_before_all_were(monkeypatch, wait_until):
    backlog = Backlog(None, MOST)
    sizes = {0: MOST}
    backlog.mark(sizes)
    threads = [threading.Thread(target=backlog.wait, args=([0],)) for _ in range(2)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(backlog._waiting) == 2)

    def interrupted(*_args: Any) -> None:
        raise KeyboardInterrupt

    first = backlog._waiting[0][1]
    with monkeypatch.context() as patch:
        patch.setattr(type(first), "set_result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            backlog.arrived(sizes, [0])
    backlog.arrived(sizes, [0])
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert backlog.is_idle


def test_a_marker_follows_each_eighth_of_the_room():
    counted = Counted(None, 8000)
    frame = Frame(Kind.PORT, bytes(600), mesh=1, ranks=(0,))
    sizes = [counted.count(frame) for _ in range(4)]
    assert sizes == [{}, {0: 2 * (600 + 256)}, {}, {0: 2 * (600 + 256)}]

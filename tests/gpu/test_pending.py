"""What is remembered of operations that have not ended."""

from __future__ import annotations

import threading
import weakref
from itertools import chain

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.gpu.buffers import Buffer
from slurmmesh.gpu.dlpack import ELEMENTS
from slurmmesh.gpu.live import Operation
from slurmmesh.gpu.pending import Pending, Queue


class Owner:
    """Of memory; it cannot be compared, as tensors cannot."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise TypeError


def queued(queue: Queue, stream: int, number: int, *owners: Owner) -> Pending:
    lent = tuple(Buffer("tensor", 1, 1, ELEMENTS["int8"], None, owner) for owner in owners)
    made = Pending(Operation("all_reduce", number, float(number)), stream, Owner(), lent)
    queue.add(made)
    return made


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(["add", "done", "first"]))))
def test_an_operation_ends_all_before_it_in_its_stream(steps: list[tuple[int, str]]) -> None:
    queue = Queue(threading.RLock())
    left: dict[int, list[Pending]] = {0: [], 1: [], 2: []}
    for number, (stream, what) in enumerate(steps):
        if what == "add":
            left[stream].append(queued(queue, stream, number, Owner()))
        elif left[stream]:
            ended = left[stream][-1 if what == "done" else 0]
            del left[stream][: left[stream].index(ended) + 1]
            assert queue.done(ended) == (not any(left.values()))
            assert queue.done(ended) == (not any(left.values()))
        every = sorted(chain(*left.values()), key=lambda one: one.operation.since)
        assert queue.oldest is (every[0] if every else None)
        assert set(queue.lasts) == {of_one[-1] for of_one in left.values() if of_one}


def test_the_last_of_each_stream_is_remembered_whatever_is_queued_in_others() -> None:
    queue = Queue(threading.RLock())
    first = queued(queue, 1, 0)
    for number in range(1, 1000):
        last = queued(queue, 2, number)
    assert queue.lasts == [first, last]
    assert queue.oldest is first
    assert not queue.done(first)
    assert queue.oldest
    assert queue.oldest.operation.sequence > 500
    assert queue.done(last)


def test_tensors_are_kept_until_they_are_done() -> None:
    queue = Queue(threading.RLock())
    owners = [Owner() for _ in range(3)]
    gone = [weakref.ref(owner) for owner in owners]
    queued(queue, 1, 0, owners[0])
    for number in range(1, 600):
        last = queued(queue, 1, number)
    queued(queue, 1, 600, owners[1])
    del owners[:2]
    assert [ref() is None for ref in gone] == [False, False, False]
    queue.done(last)
    assert [ref() is None for ref in gone] == [True, False, False]
    queue.close()
    queued(queue, 1, 601, owners.pop())
    assert [ref() is None for ref in gone] == [True, True, True]
    assert queue.lasts == []

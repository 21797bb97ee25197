"""The book of open calls: whatever an answer or a death does, each future is settled."""

from __future__ import annotations

import pickle

import pytest

from slurmmesh.actors.calls import CallBook
from slurmmesh.wire import Frame, Kind


class _LeavesOnLoading:
    def __reduce__(self):
        return exec, ("raise SystemExit(3)",)


@pytest.mark.parametrize("body", [b"no pickle", pickle.dumps(_LeavesOnLoading())])
@pytest.mark.parametrize("kind", [Kind.RESULT, Kind.ERROR])
def test_an_answer_that_cannot_be_loaded_fails_its_call_alone(kind, body):
    book = CallBook()
    call, future = book.open(1, (0,), lambda values: values[0], "a")
    book.answer(Frame(kind, body, call=call, ranks=(0,)))
    assert isinstance(future.exception(0), Exception)
    book.answer(Frame(kind, body, call=call, ranks=(0,)))  # late: nobody waits


def test_a_result_that_cannot_be_made_of_the_answers_fails_the_call():
    book = CallBook()
    call, future = book.open(1, (0,), lambda values: values[7], "a")
    book.answer(Frame(Kind.RESULT, pickle.dumps(1), call=call, ranks=(0,)))
    assert isinstance(future.exception(0), IndexError)


def test_a_call_ends_with_the_first_of_its_ranks_that_is_lost_and_others_go_on():
    book = CallBook()
    (one, first), (_, second), (_, other) = (
        book.open(mesh, ranks, list, "a") for mesh, ranks in [(1, (0, 1)), (1, (2,)), (2, (0,))]
    )
    book.answer(Frame(Kind.RESULT, pickle.dumps(1), call=one, ranks=(0,)))
    book.fail_ranks(1, (0,), KeyError("has answered already"))
    assert not first.done()
    book.fail_ranks(1, (0, 1), KeyError("gone"))
    assert isinstance(first.exception(0), KeyError)
    assert not second.done()
    assert not other.done()

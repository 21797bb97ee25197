"""The book of open calls: whatever an answer or a death does, each future is settled."""

from __future__ import annotations

import itertools
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.actors import calls
from slurmmesh.actors.calls import CallBook, in_order
from slurmmesh.actors.future import Future
from slurmmesh.wire import Frame, Kind
from tests.actors.interrupts import interrupt


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


class _Leg:
    """Is told of an arrival amid a signal handler that raises."""

    def __init__(self) -> None:
        self.interrupted = False

    def arrive(self) -> None:
        if not self.interrupted:
            self.interrupted = True
            raise KeyboardInterrupt


def test_an_answer_that_a_handler_interrupts_comes_again_and_is_not_taken_for_none():
    book = CallBook()
    legs = {0: _Leg()}
    call, future = book.open(1, (0, 1), list, "a", legs)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        book.answer_ranks(call, (0,), "zero")
    book.answer_ranks(call, (0,), "zero")
    book.answer_ranks(call, (1,), "one")
    assert future.get(0) == ["zero", "one"]


@pytest.mark.parametrize("error", [None, KeyError("lost")])
def test_wherever_a_handler_interrupts_news_all_are_told_when_it_comes_again(error):
    for step in itertools.count():
        book = CallBook()
        arrived: list[int] = []
        futures: list[Future[int]] = [Future() for _ in range(3)]
        call, future = book.open(1, range(3), list, "a")
        stream = book.open_stream(1, range(3), in_order(futures), {})
        marker = book.open_marker(1, range(3), arrived.extend)

        def say(book: CallBook = book, opened: tuple[int, ...] = (call, stream, marker)) -> None:
            for rank in range(3):
                for each in opened:
                    if error is None:
                        book.answer_ranks(each, (rank,), rank)
                    else:
                        book.fail(each, error, (rank,))

        is_over = False
        try:
            with interrupt(calls.__file__, step):
                say()
                is_over = True
        except KeyboardInterrupt:
            say()
        told = [each.exception(0) or each.get(0) for each in (future, *futures)]
        assert told == ([[0, 1, 2], 0, 1, 2] if error is None else [error] * 4)
        assert set(arrived) == {0, 1, 2}
        assert not book._open
        if is_over:
            break
    assert step > 50


def test_a_handler_that_raises_as_the_result_is_made_is_not_taken_for_the_answer():
    book = CallBook()
    interrupts = [KeyboardInterrupt()]

    def finish(values: list[int]) -> list[int]:
        if interrupts:
            raise interrupts.pop()
        return values

    call, future = book.open(1, (0,), finish, "a")
    with pytest.raises(KeyboardInterrupt):
        book.answer_ranks(call, (0,), 1)
    book.answer_ranks(call, (0,), 1)
    assert future.get(0) == [1]


def test_in_a_stream_each_rank_has_its_own_answer_or_error():
    book = CallBook()
    told: list[tuple[object, BaseException | None]] = []
    sink = lambda _rank, value, error: told.append((value, error))  # noqa: E731
    call = book.open_stream(1, range(6), sink, {})
    book.answer_ranks(call, (4, 1), "a")
    lost, late = KeyError("lost"), KeyError("late")
    book.fail_ranks(1, (0, 1), lost)
    book.answer_ranks(call, (0, 1), "too late")
    assert told == [("a", None), ("a", None), (None, lost)]
    assert book.missing(call) == (2, 3, 5)
    book.fail(call, lost, (3,))
    book.fail(call, late)
    assert told[3:] == [(None, lost), (None, late), (None, late)]
    book.answer_ranks(call, (2,), "of a call that is over")
    assert len(told) == 6
    assert book.missing(call) == ()


@given(st.lists(st.tuples(st.sampled_from(["answer", "fail", "gone"]), st.integers(0, 3))))
def test_whatever_comes_in_whatever_order_each_is_told_once(news):
    book = CallBook()
    told: list[object] = []
    sink = lambda _rank, value, error: told.append(error or value)  # noqa: E731
    stream = book.open_stream(1, range(4), sink, {})
    call, future = book.open(1, range(4), list, "a")
    settled: set[int] = set()
    for what, rank in news:
        error = KeyError(rank)
        for number in (stream, call):
            if what == "answer":
                book.answer_ranks(number, (rank,), rank)
            elif what == "fail" and rank not in settled:
                book.fail(number, error, (rank,))
        if what == "gone":
            book.fail_ranks(1, (rank,), error)
        settled.add(rank)
        assert len(told) == len(settled)
    failed = any(isinstance(each, KeyError) for each in told)
    assert future.done() == (failed or len(settled) == 4)
    if future.done():
        assert (future.exception(0) is not None) == failed

"""Deadlines: against a model in virtual time, and bounded however many are met."""

from __future__ import annotations

import pickle

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.actors.deadlines import Deadline, Deadlines, too_late
from slurmmesh.errors import CallTimeout, ExitCause
from slurmmesh.wire.reactor import Reactor


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 20)),
    st.tuples(st.just("met"), st.integers(0, 30)),
    st.tuples(st.just("pass"), st.integers(0, 10)),
)


@given(st.lists(STEPS, max_size=60))
def test_those_not_met_expire_in_the_order_in_which_they_are_due(steps):
    clock = Clock()
    reactor = Reactor(clock)
    deadlines = Deadlines(reactor)
    made: list[Deadline] = []
    expired: list[int] = []
    pending: dict[int, float] = {}
    expected: list[int] = []
    try:
        for step, number in steps:
            if step == "add":
                index = len(made)
                pending[index] = clock.now + number
                made.append(deadlines.add(number, lambda index=index: expired.append(index)))
            elif step == "met" and number < len(made):
                made[number].met()
                pending.pop(number, None)
            elif step == "pass":
                clock.now += number
                for _ in range(3):  # set the timer, fire it, set it again
                    reactor.turn(0)
                due = [index for index, at in pending.items() if at <= clock.now]
                for index in sorted(due, key=lambda index: (pending[index], index)):
                    expected.append(index)
                    del pending[index]
                assert expired == expected
    finally:
        reactor.close()


def test_met_deadlines_do_not_pile_up():
    reactor = Reactor(Clock())
    try:
        deadlines = Deadlines(reactor)
        open_ones = [deadlines.add(3600, lambda: None) for _ in range(10)]
        for _ in range(10_000):
            deadlines.add(3600, lambda: None).met()
        assert len(deadlines) < 200
        for deadline in open_ones:
            deadline.met()
            deadline.met()
        reactor.turn(0)
        assert len(reactor._timers) <= 1
    finally:
        reactor.close()


def test_the_error_names_ranks_and_deaths_and_not_too_many():
    death = ExitCause("trainers", 5, "node2", 77, signal=9)
    error = too_late("trainers.step", 2.5, (3, 1), 8, [death])
    assert str(error) == (
        "trainers.step gave no answer within 2.5 s from ranks 1, 3 (2 of 8); meanwhile "
        "rank 5 of 'trainers' on node2 (pid 77) killed by SIGKILL"
    )
    twin = pickle.loads(pickle.dumps(error))
    assert isinstance(twin, CallTimeout)
    assert (twin.ranks, twin.seconds, twin.deaths) == ((1, 3), 2.5, (death,))
    many = str(too_late("a.b", 1, range(4000), 4000, [death] * 50))
    assert "ranks 0, 1, 2, 3, 4, 5, 6, 7 and 3992 more (4000 of 4000)" in many
    assert many.count("SIGKILL") == 8
    assert "from rank 3 (1 of 1)" in str(too_late("a.b", 1, (3,), 1, ()))

"""When a wait looks again and again before it sleeps, and when it sleeps at once."""

from __future__ import annotations

from slurmmesh.wire.spinning import SPIN_S, Spinner


class Poll:
    """Finds something at the n-th look; a sleep always does."""

    def __init__(self, look: int | None = None) -> None:
        self._look = look
        self.looks = 0
        self.slept: list[float | None] = []

    def __call__(self, timeout: float | None) -> list[str]:
        if timeout != 0:
            self.slept.append(timeout)
            return ["slept"]
        self.looks += 1
        return ["seen"] if self.looks == self._look else []


def pauses(spinner: Spinner, count: int) -> list[int]:
    """How many waits slept at once before each of so many that looked, always in vain."""
    found, slept = [], 0
    while len(found) < count:
        poll = Poll()
        assert spinner.wait(poll, None) == ["slept"]
        if poll.looks:
            found.append(slept)
            slept = 0
        else:
            slept += 1
    return found


def test_what_comes_soon_is_found_without_a_sleep():
    spinner = Spinner()
    for look in (1, 2, 3):
        poll = Poll(look)
        assert spinner.wait(poll, None) == ["seen"]
        assert (poll.looks, poll.slept) == (look, [])


def test_in_vain_it_is_tried_ever_more_seldom_but_never_given_up():
    assert pauses(Spinner(), 8) == [0, 1, 3, 7, 15, 31, 31, 31]


def test_success_makes_it_be_tried_more_often_again():
    spinner = Spinner()
    pauses(spinner, 4)
    slept = []
    for _ in range(5):
        slept.append(0)
        while True:
            poll = Poll(1)
            if spinner.wait(poll, None) == ["seen"]:
                break
            assert not poll.looks
            slept[-1] += 1
    assert slept == [15, 7, 3, 1, 0]


def test_it_sleeps_for_as_long_as_it_was_told():
    spinner = Spinner()
    poll = Poll()
    assert spinner.wait(poll, 5.0) == ["slept"]
    assert poll.slept == [5.0]
    assert poll.looks


def test_a_wait_shorter_than_a_look_only_waits():
    poll = Poll(1)
    assert Spinner().wait(poll, SPIN_S / 2) == ["slept"]
    assert (poll.looks, poll.slept) == (0, [SPIN_S / 2])

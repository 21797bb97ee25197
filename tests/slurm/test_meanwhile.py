"""Two things at once: both end, and the body's error counts first."""

from __future__ import annotations

import threading

import pytest

from slurmmesh.slurm.meanwhile import meanwhile


def fail() -> None:
    raise ValueError("of the other")


def test_both_run_at_the_same_time():
    both = threading.Barrier(2, timeout=30)
    with meanwhile(both.wait):
        both.wait()
    assert not both.broken


def test_the_other_has_ended_when_it_is_left():
    begun, done = threading.Event(), []

    def do() -> None:
        begun.wait(30)
        done.append(True)

    with meanwhile(do):
        begun.set()
    assert done == [True]


def test_its_error_is_raised_once_the_body_is_done():
    body = []
    with pytest.raises(ValueError, match="of the other"), meanwhile(fail):
        body.append("done")
    assert body == ["done"]


def test_an_error_of_the_body_comes_first():
    with pytest.raises(KeyError, match="of the body"), meanwhile(fail):
        raise KeyError("of the body")

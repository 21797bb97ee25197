"""What tests of actors that wait for each other in a circle share."""

from __future__ import annotations

from slurmmesh.actors import waits
from slurmmesh.errors import ActorError, CallCycle

PATIENCE_S = 0.1
"""Of the actors of these tests."""


def hasten() -> None:
    """Have the actors of this process send probes early."""
    waits.PATIENCE_S = PATIENCE_S


def cycle_in(error: BaseException | None) -> CallCycle:
    """The error that the actors of a circle handed on to the program."""
    while isinstance(error, ActorError):
        error = error.exception
    assert isinstance(error, CallCycle), repr(error)
    return error

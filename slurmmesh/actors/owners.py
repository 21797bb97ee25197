"""Who owns a mesh: the actor or the process that spawned it, with which it ends."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.context import context
from slurmmesh.actors.supervising import RankFailure
from slurmmesh.errors import SlurmmeshError

if TYPE_CHECKING:
    from slurmmesh.actors.runtime import Runtime

GRACE_S = 5.0
"""How long children that end with their owner may take, in seconds."""
_NEWS_S = 2.0
"""How much longer the news of their end may take."""


@dataclass(frozen=True)
class Owner:
    """An actor of a process, or (number 0) the process itself."""

    process: ProcessId
    actor: int = 0

    def __str__(self) -> str:
        return f"actor {self.actor} of {self.process}" if self.actor else str(self.process)


ROOT = Owner(CONTROLLER)
"""The user's program."""

_children: dict[Owner, weakref.WeakSet[Runtime]] = {}


class Family:
    """What an actor is to its owner and to its children.

    Args:
        owner: itself.
        report: tells its own owner of a failure.
    """

    def __init__(self, owner: Owner, report: Callable[[RankFailure], Any]) -> None:
        self._owner = owner
        self.failed = report

    def end_children(self, grace_s: float) -> None:
        """See ``end_children``."""
        end_children(self._owner, grace_s)


def new_child(runtime: Runtime) -> Owner:
    """The owner of what the running code is about to spawn; it will have children."""
    owner = Owner(runtime.address, context().actor_instance.number)
    if owner != ROOT:
        _children.setdefault(owner, weakref.WeakSet()).add(runtime)
    return owner


def end_children(owner: Owner, grace_s: float = GRACE_S) -> None:
    """End all that an owner of this process has spawned and wait until it is gone.

    What has not ended in order after ``grace_s`` seconds is killed.
    """
    for runtime in _children.pop(owner, ()):
        # The job may be over, or its end may cut this short: then they end with it.
        with contextlib.suppress(SlurmmeshError):
            runtime.end_owned(owner, grace_s).wait(grace_s + _NEWS_S)

"""Actors that wait for each other in a circle, found by probes. Pure: what waits, what follows.

An actor whose endpoint waits for a call takes no other message: who calls it waits, too. A probe
follows what is waited for, from actor to actor, while each has the call still to answer and waits
itself. One that comes back to the wait it began at has been round a circle of calls none of which
can ever be answered. All members of a circle send probes, and the one whose call is the youngest
gives up: it has closed the circle, and it is one alone.

A wait that needs only some of the actors called is in no circle of others, and stops their probes.
It gives up itself once too few are left that are not stuck.

Who gives up takes its call back: run later, it would close the same circle anew.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import NamedTuple

from slurmmesh.errors import CallCycle


class Wait(NamedTuple):
    """An endpoint that waits for a call.

    Attributes:
        actor: that it holds, as people name it.
        endpoint: its name.
        call: the mark of the call it waits for, see ``Waits.ask``.
        called: the endpoint it has called.
        since: when it made the call, in seconds since the epoch.
        number: of this wait, among those of its actor.
        spare: how many of the actors called it can do without, as the first of a stream.
    """

    actor: str
    endpoint: str
    call: bytes
    called: str
    since: float
    number: int
    spare: int = 0


class Probe(NamedTuple):
    """Asks the actor that is called by the last of these waits whether it waits as well.

    Attributes:
        waits: each for the next, from the one that began it on.
        turn: counts the probes of that one.
        rank: that it was sent to first, where that matters.
    """

    waits: tuple[Wait, ...]
    turn: int = 1
    rank: int = -1


class Withdrawal(NamedTuple):
    """Tells an actor not to run a call of this mark, and with what error to answer it."""

    mark: bytes
    error: CallCycle


class Withdrawn:
    """The calls in a mailbox that were taken back. They stay in their place until it is their turn.

    Args:
        queued: the marks of the calls in the mailbox.

    Attributes:
        errors: by mark, with what to answer them. Not a method: it is asked for each message.
    """

    def __init__(self, queued: Callable[[], Collection[bytes]]) -> None:
        self.errors: dict[bytes, CallCycle] = {}
        self._queued = queued

    def add(self, withdrawal: Withdrawal) -> None:
        """Take a call back unless it is taken already. From any thread."""
        mark, error = withdrawal
        self.errors[mark] = error  # before the look: it may be taken at any moment
        if mark not in self._queued():
            self.errors.pop(mark, None)

    def take(self, mark: bytes) -> CallCycle | None:
        """A call was taken from the mailbox: with what to answer it instead of running it."""
        return self.errors.pop(mark, None)


class Standing:
    """One wait, and what probes that come to its actor lead to."""

    def __init__(self, wait: Wait) -> None:
        self.wait = wait
        self._passed: dict[tuple[Wait, int], int] = {}
        self._stuck: set[int] = set()

    def take(self, probe: Probe, owes: Callable[[bytes], bool]) -> Probe | CallCycle | None:
        """What a probe leads to: a probe to whom this waits for, an error for this, or nothing.

        Args:
            owes: whether the actor has a call, by its mark, to answer that waits for this to end.
        """
        if not owes(probe.waits[-1].call):
            return None
        began, spare = probe.waits[0], self.wait.spare
        if began == self.wait:
            self._stuck.add(probe.rank)
            is_mine = len(self._stuck) > spare if spare else self.wait == _youngest(probe.waits)
            return _error(probe.waits) if is_mine else None
        if spare or self._passed.get((began, probe.rank), 0) >= probe.turn:
            return None
        self._passed[began, probe.rank] = probe.turn
        return probe._replace(waits=(*probe.waits, self.wait))


def _youngest(waits: tuple[Wait, ...]) -> Wait:
    return max(waits, key=lambda wait: (wait.since, wait.call))


def _error(waits: tuple[Wait, ...]) -> CallCycle:
    """Of a circle, for the first of these, which has closed it."""
    last, *others = waits
    first = others[0] if others else last
    names = [f"{wait.actor}.{wait.endpoint}" for wait in (*others, last)]
    return CallCycle((*names, f"{first.actor}.{last.called}"))

"""What procs ask of the controller: all that changes the life of procs and actors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slurmmesh.actors.failure import Failure
from slurmmesh.actors.future import Future
from slurmmesh.errors import LinkClosed, UsageError
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind

if TYPE_CHECKING:
    from slurmmesh.hosts.roster import HostRecord

Operation = Callable[..., Any]
"""Gives a value, or a future of one; in the controller's loop, so it must not wait."""


class Asks:
    """Answers ASK frames, which hosts bring from their procs.

    Args:
        operations: by their names.
    """

    def __init__(self, operations: Mapping[str, Operation]) -> None:
        self._operations = operations

    def take(self, host: HostRecord, frame: Frame) -> None:
        """Carry out what a proc on this host asks for, and answer when it is done."""
        try:
            name, args = loads(frame.body, frame.buffers)
            operation = self._operations.get(name)
            if operation is None:
                raise UsageError(f"nobody can ask for {name!r}")
            found = operation(*args)
        except Exception as error:
            self._answer(host, frame, None, error)
            return
        if isinstance(found, Future):
            found.add_done_callback(lambda future: self._answer(host, frame, *_outcome_of(future)))
        else:
            self._answer(host, frame, found, None)

    def _answer(
        self, host: HostRecord, asked: Frame, value: Any, error: BaseException | None
    ) -> None:
        kind = Kind.RESULT
        if error is not None:
            kind = Kind.ERROR
            value = Failure.of(error, actor="", rank=0, host="the controller", fatal=True)
        body, buffers = dumps(value)
        answer = Frame(kind, body, buffers, asked.call, ranks=(0,))
        with contextlib.suppress(LinkClosed):
            if host.link is not None:
                host.link.post(answer)


def _outcome_of(future: Future[Any]) -> tuple[Any, BaseException | None]:
    error = future.peek()
    return (None, error) if error is not None else (future.get(0), None)


class AskBooks:
    """The host's part: which of its procs asked what. ASK frames get numbers of the host's own."""

    def __init__(self) -> None:
        self._asked: dict[int, tuple[Any, int]] = {}
        self._last = 0

    def outgoing(self, proc: Any, frame: Frame) -> Frame:
        """An ASK of a proc, as it goes to the controller."""
        self._last += 1
        self._asked[self._last] = proc, frame.call
        return replace(frame, call=self._last)

    def incoming(self, frame: Frame) -> tuple[Any, Frame] | None:
        """The proc an answer is for, and the answer as it is given to it."""
        asked = self._asked.pop(frame.call, None)
        return None if asked is None else (asked[0], replace(frame, call=asked[1]))

    def forget(self, proc: Any) -> None:
        """A proc is gone: nobody waits for its answers."""
        self._asked = {call: who for call, who in self._asked.items() if who[0] is not proc}

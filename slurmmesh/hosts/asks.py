"""What procs ask of the controller: all that changes the life of procs and actors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
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

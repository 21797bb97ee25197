"""Response ports: where an endpoint that asked for its port answers its call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from slurmmesh.actors.addresses import CONTROLLER
from slurmmesh.actors.failure import Failure
from slurmmesh.actors.ports import Port, PortReceiver, port_of
from slurmmesh.actors.receipts import Arrival
from slurmmesh.errors import UsageError

_forwarding: set[_Forwarder] = set()
"""Response ports that went to other processes and have not been answered from there."""


class ResponsePort(Port[Any]):
    """Answers one call, once: in the endpoint, later, from any thread.

    Sent to another actor it may be answered there; the answer passes through this process. One
    that is dropped unanswered fails its call.

    Args:
        answer, fail: send the answer or the failure to the caller.
        dropped: fails the call because nobody can answer it any more; must not block.
    """

    def __init__(
        self,
        answer: Callable[[Any], Any],
        fail: Callable[[Failure], Any],
        dropped: Callable[[], Any],
    ) -> None:
        super().__init__("", CONTROLLER, 0, once=True)  # it has an address only once it is sent on
        self._answer = answer
        self._fail = fail
        self._dropped = dropped

    @property
    def used(self) -> bool:
        """Whether the call is answered."""
        return self._used

    def fail(self, failure: Failure) -> None:
        """Fail the call, unless it is answered."""
        with contextlib.suppress(UsageError):
            self._send(True, failure)

    def _send(self, failed: bool, value: Any) -> None:
        self._use()
        (self._fail if failed else self._answer)(value)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return "ResponsePort(answered)" if self._used else "ResponsePort()"

    def __reduce__(self) -> Any:
        if self._used:
            return super().__reduce__()
        return port_of(_Forwarder(self)).__reduce__()

    def __del__(self) -> None:
        if not self._used:
            self._dropped()


class _Forwarder(PortReceiver[Any]):
    """Takes the answer that comes from another process."""

    def __init__(self, port: ResponsePort) -> None:
        super().__init__(once=True)
        self._port = port
        _forwarding.add(self)

    def put(self, message: Arrival) -> None:
        _forwarding.discard(self)
        with contextlib.suppress(UsageError):  # it was answered here, or by another copy
            if message.failed:
                self._port.exception(message.value)
            else:
                self._port.send(message.value)

"""Channels: a port to send to, from any process, and a receiver in the process that opened it.

A port is a value: its owner and a number. Sending never waits for the receiver, but for its process
while that does not read what it was sent (``actors/backlog.py``); what comes for a receiver that is
gone is dropped. Messages of one sender arrive in their order. A receiver does not notice that a
sender died.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Generic, NoReturn, TypeVar

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.context import context
from slurmmesh.actors.failure import Failure
from slurmmesh.actors.future import Future
from slurmmesh.actors.receipts import Arrival, Receipts
from slurmmesh.actors.runtime import find_runtime, home
from slurmmesh.errors import SupervisionError, UsageError
from slurmmesh.wire.codec import dumps_to_send, loads
from slurmmesh.wire.frames import Buffer

T = TypeVar("T")


class PortTable:
    """The receivers of this process by the number of their port. Safe to use from any thread.

    It does not keep a receiver: one that its user dropped is gone from it.
    """

    def __init__(self) -> None:
        self._receivers: weakref.WeakValueDictionary[int, PortReceiver[Any]] = (
            weakref.WeakValueDictionary()
        )

    def __len__(self) -> int:
        return len(self._receivers)

    def add(self, receiver: PortReceiver[Any]) -> int:
        """Enter a receiver; returns the number of its port, which nobody can guess."""
        number = secrets.randbits(63)
        self._receivers[number] = receiver
        return number

    def deliver(self, port: int, body: Buffer, buffers: Sequence[Buffer]) -> None:
        """Take what came for a port. Nothing is loaded if there is no such port any more."""
        receiver = self._receivers.get(port)
        if receiver is None:
            return
        if receiver.once:
            self._receivers.pop(port, None)
        receiver.put(_unpacked(body, buffers))


PORTS = PortTable()
"""The ports of this process."""


class Port(Generic[T]):
    """Where to send. May be copied, pickled and passed to any actor of the job.

    A port opened with ``once`` takes one message.

    Args:
        job: of the proc that owns it; empty if the controller does.
    """

    def __init__(self, job: str, owner: ProcessId, number: int, once: bool = False) -> None:
        self._job = job
        self._owner = owner
        self._number = number
        self._once = once
        self._used = False
        self._lock = threading.Lock()

    def send(self, value: T) -> None:
        """Send ``value``. The receiver's process may be gone.

        Returns at once, unless much of what that process was sent it has not read yet.

        Raises UsageError if it cannot be pickled, or a once-port was used before.
        """
        self._send(False, value)

    def exception(self, error: BaseException) -> None:
        """Send an error, which is raised at the receiver as it is.

        Where it cannot be rebuilt there, an ``ActorError`` with its text is. Raises as ``send``.
        """
        if not isinstance(error, BaseException):
            raise TypeError(f"a port's exception() takes an exception, not {error!r}")
        self._send(True, failure_here(error))

    def _send(self, failed: bool, value: Any) -> None:
        body, buffers = packed(failed, value)
        self._use()
        here = home()
        if self._owner == (here.address if here else CONTROLLER):
            # In the same process, too, it is a copy that arrives.
            PORTS.deliver(self._number, body, [bytearray(buffer) for buffer in buffers])
            return
        runtime = here or find_runtime(self._job)
        if runtime is not None:  # otherwise the job is over, and its owner with it
            runtime.send_to_port(self._owner, self._number, body, buffers)

    def _use(self) -> None:
        with self._lock:
            if self._once and self._used:
                raise UsageError("a port opened with once=True takes one message, and had it")
            self._used = True

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Port):
            return NotImplemented
        return (self._owner, self._number) == (other._owner, other._number)

    def __hash__(self) -> int:
        return hash((self._owner, self._number))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._number:x} of {self._owner})"

    def __reduce__(self) -> Any:
        return _port, (self._job, self._owner, self._number, self._once, self._used)


def _port(job: str, owner: ProcessId, number: int, once: bool, used: bool) -> Port[Any]:
    port: Port[Any] = Port(job, owner, number, once)
    port._used = used
    return port


class PortReceiver(Generic[T]):
    """Where messages arrive, in the process that opened the channel.

    Messages wait here without bound until they are read; dropping the receiver drops them.
    """

    def __init__(self, once: bool = False) -> None:
        self.once = once
        self._pid = os.getpid()
        self._receipts = Receipts(once, self._value)

    def recv(self) -> Future[T]:
        """A future of the next message. From any thread.

        Each message goes to the oldest future that somebody still wants: one that timed out,
        was cancelled or dropped takes none, and one that took a message and was dropped before
        anybody read it gives it back.

        The future fails with what was sent by ``Port.exception``, or with what unpickling the
        message raised here; ``get`` raises CallTimeout if none comes in time. It does not fail when
        nobody is left to send.

        Raises:
            UsageError: a once-port whose message was read, or is awaited elsewhere.
            SupervisionError: in a fork of the process that opened it.
        """
        if os.getpid() != self._pid:
            raise SupervisionError(
                f"this process is a fork of the one that opened the port (pid {self._pid}): "
                "messages arrive there"
            )
        here = home()
        return self._receipts.next(here.driver if here else None)

    def put(self, message: Arrival) -> None:
        """Take a message that arrived. For the runtime."""
        self._receipts.put(message)

    def _value(self, message: Arrival) -> Any:
        return message.value

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PortReceiver stays in its process: send its Port instead")


class RankedPortReceiver(PortReceiver[tuple["int | None", T]], Generic[T]):
    """A receiver whose messages come as ``(rank, value)``.

    ``rank`` is that of the endpoint that sent, in the mesh or slice that was called; None for
    what was not sent in an endpoint.
    """

    def _value(self, message: Arrival) -> Any:
        return message.rank, message.value


class Channel(Generic[T]):
    """Opens ports: ``port, receiver = Channel.open()``. With ``once`` for a single message."""

    @staticmethod
    def open(once: bool = False) -> tuple[Port[Any], PortReceiver[Any]]:
        """A port, and the receiver of what is sent to it."""
        receiver: PortReceiver[Any] = PortReceiver(once)
        return port_of(receiver), receiver

    @staticmethod
    def open_ranked(once: bool = False) -> tuple[Port[Any], RankedPortReceiver[Any]]:
        """A port, and a receiver that tells with each message the rank it is from."""
        receiver: RankedPortReceiver[Any] = RankedPortReceiver(once)
        return port_of(receiver), receiver


def port_of(receiver: PortReceiver[Any]) -> Port[Any]:
    """Enter a receiver in the table of this process; returns its port."""
    here = home()
    number = PORTS.add(receiver)
    if here is None:
        return Port("", CONTROLLER, number, receiver.once)
    return Port(here.job, here.address, number, receiver.once)


def failure_here(error: BaseException) -> Failure:
    """``error`` on its way out of the code that is running, to be raised as it is."""
    here = context()
    name = here.actor_instance.name
    return Failure.of(error, actor=name, rank=here.proc_rank, host=here.host, itself=True)


def packed(failed: bool, value: Any) -> tuple[bytes, list[memoryview]]:
    """A message as it travels: whether it is a failure, the sender's rank, the value."""
    here = context()
    try:
        rank = here.message_rank.rank if here.actor_instance.name else None
        return dumps_to_send((failed, rank, value))
    except Exception as error:
        raise UsageError(f"this value cannot be sent to a port: {error}") from error


def _unpacked(body: Buffer, buffers: Sequence[Buffer]) -> Arrival:
    # Loading runs code of the user's classes, which may raise anything.
    try:
        failed, rank, value = loads(body, buffers)
        return Arrival(value.rebuild() if failed else value, rank, failed)
    except Exception as error:
        return Arrival(error, None, True)
    except SystemExit as error:
        return Arrival(RuntimeError(f"a message cannot be loaded: {error!r}"), None, True)

"""Channels: a port to send to, from any process, and a receiver in the process that opened it.

A port is a value: its owner and a number. Sending never waits for the receiver, and what comes
for a receiver that is gone is dropped. Messages of one sender arrive in their order. A receiver
does not notice that a sender died.
"""

from __future__ import annotations

import os
import secrets
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Generic, NoReturn, Protocol, TypeVar

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.context import context
from slurmmesh.actors.failure import Failure
from slurmmesh.actors.future import Future
from slurmmesh.actors.receipts import Message, Receipts
from slurmmesh.errors import SupervisionError, UsageError
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Buffer

T = TypeVar("T")


class PostOffice(Protocol):
    """What ports need of the process they are used in."""

    @property
    def address(self) -> ProcessId:
        """The process itself."""

    @property
    def driver(self) -> Driver | None:
        """Of the loop that messages for this process come by."""

    def send_to_port(
        self, owner: ProcessId, port: int, body: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Send to a port of another process, which gives it to ``PORTS.deliver``.

        ``buffers`` are the sender's own memory. A dead owner is no error: it is dropped.
        """


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
_office: PostOffice | None = None


def set_post_office(office: PostOffice | None) -> None:
    """Say how ports of other processes are reached. For the runtime of the process."""
    global _office
    _office = office


class Port(Generic[T]):
    """Where to send. May be copied, pickled and passed to any actor of the job.

    A port opened with ``once`` takes one message.
    """

    def __init__(self, owner: ProcessId, number: int, once: bool = False) -> None:
        self._owner = owner
        self._number = number
        self._once = once
        self._used = False
        self._lock = threading.Lock()

    def send(self, value: T) -> None:
        """Send ``value``. Returns at once; the receiver's process may be gone.

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
        office = _office
        if self._owner == (office.address if office else CONTROLLER):
            # In the same process, too, it is a copy that arrives.
            PORTS.deliver(self._number, body, [bytearray(buffer) for buffer in buffers])
        elif office is None:
            raise SupervisionError(f"{self!r} cannot be reached: this process is in no job")
        else:
            office.send_to_port(self._owner, self._number, body, buffers)

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
        return _port, (self._owner, self._number, self._once, self._used)


def _port(owner: ProcessId, number: int, once: bool, used: bool) -> Port[Any]:
    port: Port[Any] = Port(owner, number, once)
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

        Raises:
            UsageError: a once-port whose message was read, or is awaited elsewhere.
            SupervisionError: in a fork of the process that opened it.
        """
        if os.getpid() != self._pid:
            raise SupervisionError(
                f"this process is a fork of the one that opened the port (pid {self._pid}): "
                "messages arrive there"
            )
        return self._receipts.next(_office.driver if _office else None)

    def put(self, message: Message) -> None:
        """Take a message that arrived. For the runtime."""
        self._receipts.put(message)

    def _value(self, message: Message) -> Any:
        return message.value

    def __reduce__(self) -> NoReturn:
        raise TypeError("a PortReceiver stays in its process: send its Port instead")


class RankedPortReceiver(PortReceiver[tuple["int | None", T]], Generic[T]):
    """A receiver whose messages come as ``(rank, value)``.

    ``rank`` is that of the endpoint that sent, in the mesh or slice that was called; None for
    what was not sent in an endpoint.
    """

    def _value(self, message: Message) -> Any:
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
    owner = _office.address if _office else CONTROLLER
    return Port(owner, PORTS.add(receiver), receiver.once)


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
        return dumps((failed, rank, value))
    except Exception as error:
        raise UsageError(f"this value cannot be sent to a port: {error}") from error


def _unpacked(body: Buffer, buffers: Sequence[Buffer]) -> Message:
    # Loading runs code of the user's classes, which may raise anything.
    try:
        failed, rank, value = loads(body, buffers)
        return Message(value.rebuild() if failed else value, rank, failed)
    except Exception as error:
        return Message(error, None, True)
    except SystemExit as error:
        return Message(RuntimeError(f"a message cannot be loaded: {error!r}"), None, True)

"""One actor in its thread: a mailbox, the instance, and how its messages are answered."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from slurmmesh.actors.actor import Actor, is_endpoint
from slurmmesh.actors.context import Context, enter_context
from slurmmesh.actors.failure import Failure
from slurmmesh.actors.mailbox import Mailbox
from slurmmesh.actors.messages import CreateActor
from slurmmesh.errors import LinkClosed, SupervisionError
from slurmmesh.shape import Region
from slurmmesh.wire.batches import BatchLink, is_plain
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.reactor import print_error, say

_ENDS_THE_PROC = (SystemExit, KeyboardInterrupt)
"""Everything else that an endpoint raises fails its call alone."""


class Message(NamedTuple):
    """A call or cast on its way to an actor: as a frame, or already apart.

    Attributes:
        link: it came by; the answer goes back there.
        number: of a message without frame: of the call; negative for a cast.
        where: the slice called, see ``Region.pack``.
    """

    link: BatchLink
    frame: Frame | None
    number: int = 0
    method: str = ""
    args: tuple[Any, ...] = ()
    where: Any = None

    @property
    def is_cast(self) -> bool:
        """Whether no answer is expected."""
        return self.number < 0 if self.frame is None else self.frame.kind is Kind.CAST


class ActorRunner:
    """Builds one actor and runs its messages one after the other.

    Args:
        create: the message with the CREATE frame.
        context: of the proc; the actor's name and the point called are filled in.
        region: of the whole proc mesh.
        wait: waits until the mailbox has something.
    """

    def __init__(
        self,
        create: Message,
        context: Context,
        region: Region,
        wait: Callable[[Mailbox[Any]], Any],
    ) -> None:
        self._create = create
        self._context = context
        self._contexts: dict[Any, Context] = {}
        self._region = region
        self._wait = wait
        self._mailbox: Mailbox[Message | None] = Mailbox()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._instance: Actor | None = None
        self._endpoints: dict[str, Callable[..., Any]] = {}
        self._broken: str | None = None
        self._stopping = False
        self._pid = os.getpid()
        assert create.frame is not None
        self._name = f"actor {create.frame.actor}"

    def post(self, message: Message) -> None:
        """Queue a message. From any thread."""
        self._mailbox.put(message)

    def stop(self) -> None:
        """End after the running message; queued ones are dropped. From any thread."""
        self._stopping = True
        self._mailbox.put(None)

    def run(self) -> None:
        """Build the actor, answer messages until stopped, clean up. In the actor's thread.

        ``SystemExit`` and ``KeyboardInterrupt`` come out of here: they end the proc.
        """
        self._build()
        ended: BaseException | None = None
        try:
            while not self._stopping:
                self._take()
        except BaseException as error:
            ended = error
            raise
        finally:
            self._clean_up(ended)

    def _take(self) -> None:
        """Handle the next message. Nothing here outlives it: it may be large."""
        mailbox = self._mailbox
        if not mailbox.done():
            self._wait(mailbox)
        message = mailbox.take()
        if message is None or self._stopping:
            return
        self._handle(message)
        if os.getpid() != self._pid:  # an endpoint forked, and its child returned as well
            os._exit(0)
        if not mailbox.done() and not message.link.closed:
            message.link.flush()

    def _build(self) -> None:
        enter_context(self._context)
        frame = self._create.frame
        assert frame is not None
        try:
            create: CreateActor = loads(frame.body, frame.buffers)
            self._name = create.name
            self._context = replace(self._context, actor=create.name)
            enter_context(self._context)
            self._instance = create.cls(*create.args, **create.kwargs)
        except _ENDS_THE_PROC:
            raise
        except BaseException as error:
            failure = self._failure(error)
            self._broken = (
                f"the constructor of {self._name!r} raised:\n{failure.formatted.rstrip()}"
            )
            say(self._broken)
            self._fail(self._create, failure)
        else:
            self._answer(self._create, None)
        finally:
            self._create = self._create._replace(frame=None)

    def _handle(self, message: Message) -> None:
        if self._instance is None:
            error = SupervisionError(f"{self._name!r} does not exist here: {self._broken}")
            self._fail(message, self._failure(error, fatal=True))
            return
        try:
            result = self._invoke(message)
        except _ENDS_THE_PROC:
            raise
        except BaseException as error:
            failure = self._failure(error)
            if message.is_cast:
                # Nobody waits for it: the actor is in a state that nobody knows.
                self._broken = f"a broadcast endpoint raised:\n{failure.formatted.rstrip()}"
                say(f"{self._name!r}: {self._broken}")
                self._end_instance(error)
            else:
                self._fail(message, failure)
        else:
            if not message.is_cast:
                self._answer(message, result)

    def _invoke(self, message: Message) -> Any:
        if message.frame is None:
            method, args, where = message.method, message.args, message.where
            kwargs: dict[str, Any] = {}
        else:
            method, args, kwargs, where = loads(message.frame.body, message.frame.buffers)
        run = self._endpoints.get(method) or self._endpoint(method)
        enter_context(self._contexts.get(where) or self._context_of(where))
        result = run(*args, **kwargs)
        if inspect.iscoroutine(result):
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            result = self._loop.run_until_complete(result)
        return result

    def _endpoint(self, method: str) -> Callable[..., Any]:
        cls = type(self._instance)
        if not is_endpoint(cls, method):
            raise AttributeError(f"{cls.__name__} has no endpoint {method!r}")
        run: Callable[..., Any] = getattr(self._instance, method)
        self._endpoints[method] = run
        return run

    def _context_of(self, where: Any) -> Context:
        region = self._region if where is None else Region.unpack(where)
        point = region.extent.point(region.local_rank(self._context.proc_rank))
        if len(self._contexts) > _MAX_CONTEXTS:
            self._contexts.clear()
        made = self._contexts[where] = replace(self._context, point=point)
        return made

    def _answer(self, message: Message, value: Any) -> None:
        if message.frame is None and is_plain((value,)):
            with contextlib.suppress(LinkClosed):  # the caller is gone
                message.link.add(Kind.RESULTS, (message.number, value))
            return
        try:
            body, buffers = dumps(value)
        except Exception as error:
            text = f"the result of {self._name!r} cannot be sent: {type(error).__name__}: {error}"
            self._fail(message, self._failure(TypeError(text)))
            return
        self._send(message, Kind.RESULT, body, buffers)

    def _fail(self, message: Message, failure: Failure) -> None:
        if not message.is_cast:
            body, buffers = dumps(failure)
            self._send(message, Kind.ERROR, body, buffers)

    def _send(self, message: Message, kind: Kind, body: bytes, buffers: Any) -> None:
        frame = message.frame
        if frame is None:
            answer = Frame(kind, body, buffers, message.number)
        else:
            rank = self._context.proc_rank
            answer = Frame(kind, body, buffers, frame.call, frame.mesh, frame.actor, (rank,))
        with contextlib.suppress(LinkClosed):  # the caller is gone
            message.link.send(answer)

    def _failure(self, error: BaseException, fatal: bool = False) -> Failure:
        return Failure.of(
            error,
            actor=self._name,
            rank=self._context.proc_rank,
            host=self._context.host,
            fatal=fatal,
        )

    def _clean_up(self, ended: BaseException | None) -> None:
        enter_context(self._context)
        try:
            self._end_instance(ended)
        finally:
            if self._loop is not None:
                self._loop.close()

    def _end_instance(self, ended: BaseException | None) -> None:
        instance, self._instance = self._instance, None
        self._endpoints.clear()
        if instance is not None and os.getpid() == self._pid:
            try:
                instance.__cleanup__(ended)
            except Exception:
                print_error()


_MAX_CONTEXTS = 1024

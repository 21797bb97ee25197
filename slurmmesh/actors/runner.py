"""One actor in its thread: a mailbox, the instance, and how its messages are answered."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import pickle
from collections.abc import Callable
from dataclasses import replace
from types import CoroutineType
from typing import Any

from slurmmesh.actors.actor import Actor, EndpointOptions, endpoint_options
from slurmmesh.actors.backlog import TAKEN
from slurmmesh.actors.context import ActorInstance, Context, enter_context
from slurmmesh.actors.creating import unpacked
from slurmmesh.actors.cycles import Withdrawal
from slurmmesh.actors.failure import Failure
from slurmmesh.actors.incoming import Message
from slurmmesh.actors.mailbox import Mailbox
from slurmmesh.actors.owners import GRACE_S, Family
from slurmmesh.actors.reloading import RELOAD, reload_once, renew
from slurmmesh.actors.responses import ResponsePort
from slurmmesh.actors.supervising import MeshFailure, Order, RankFailure, Ready, StopActor
from slurmmesh.actors.tasks import Tasks
from slurmmesh.actors.waits import Waits
from slurmmesh.errors import CallCycle, LinkClosed, MeshStopped, SupervisionError
from slurmmesh.shape import Region
from slurmmesh.wire.batches import is_plain
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import URGENT, Frame, Kind
from slurmmesh.wire.reactor import print_error, say

_ENDS_THE_PROC = (SystemExit, KeyboardInterrupt)
"""Everything else that an endpoint raises fails its call alone."""
_LATER = object()
"""What is invoked answers its call itself."""


class _Special:
    """An endpoint that answers another way than by returning."""

    __slots__ = ("options", "run")

    def __init__(self, run: Callable[..., Any], options: EndpointOptions) -> None:
        self.run = run
        self.options = options


class ActorRunner:
    """Builds one actor and runs its messages one after the other.

    Args:
        create: the message with the CREATE frame.
        context: of the proc; the actor's name and the point called are filled in.
        region: of the whole proc mesh.
        driver: of the loop by which messages come, if the actor's thread is to run that, too.
        soon: has something done in a loop's thread.
        is_guest: it lives in a process that does not end with it.

    Attributes:
        name: that it was spawned with.
    """

    def __init__(
        self,
        create: Message,
        context: Context,
        region: Region,
        driver: Driver | None,
        family: Family,
        soon: Callable[..., Any],
        is_guest: bool = False,
    ) -> None:
        self._create = create
        self._contexts: dict[Any, Context] = {}
        self._region = region
        self._driver = driver
        self._wait: Callable[[Mailbox[Any]], Any] = driver.wait if driver else Mailbox.wait
        self._mailbox: Mailbox[Message | None] = Mailbox(driver)
        self._tasks = Tasks()
        self._waits = Waits(self._tasks, self._marks, soon)
        self._context = replace(context, waits=self._waits)
        self._escaped: tuple[str, BaseException, ResponsePort | None] | None = None
        self._instance: Actor | None = None
        self._endpoints: dict[str, Callable[..., Any]] = {}
        self._family = family
        self._is_guest = is_guest
        self._broken: str | None = None
        self._stopping = False
        self._stop: Message | None = None
        self._grace_s = GRACE_S
        self._pid = os.getpid()
        frame = create.frame
        assert frame is not None
        self.number = frame.actor
        self._about = frame.mesh, context.proc_rank, frame.actor
        self.name = f"actor {frame.actor}"

    def post(self, message: Message) -> None:
        """Queue a message. From any thread."""
        frame = message.frame
        if frame is None or not frame.flags & URGENT:
            self._mailbox.put(message)
        elif frame.kind is Kind.CAST:
            self._waits.probed(frame)
        elif isinstance(what := loads(frame.body), Withdrawal):
            self._waits.withdrawn.add(what)
            self._answer(message, None)
            self._flush(message)
        else:
            self._mailbox.put_first(message)

    def _marks(self) -> list[bytes]:
        """Of the calls that wait, those that actors made among them."""
        return [each.call_mark for each in self._mailbox.waiting() if each is not None]

    def stop(self, grace_s: float) -> None:
        """End after the running message; queued ones are dropped. From any thread.

        Args:
            grace_s: for its children.
        """
        self._grace_s = grace_s
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
        mailbox, withdrawn = self._mailbox, self._waits.withdrawn
        if self._tasks.beside:
            self._waits.answers = b""  # whoever waits for the one before has its answer
            self._tasks.turn()
            if not mailbox.done():
                self._tasks.wait_for_mail(mailbox, self._driver)
        elif not mailbox.done():
            self._wait(mailbox)
        message = mailbox.take()
        if self._escaped is not None:
            self._break(*self._escaped)
        if message is None or self._stopping:
            return
        frame = message.frame
        if frame is not None and frame.flags & URGENT:
            self._obey(message)
        elif withdrawn.errors and (error := withdrawn.take(message.call_mark)):
            self._fail(message, error)
        else:
            self._handle(message)
        if os.getpid() != self._pid:  # an endpoint forked, and its child returned as well
            os._exit(0)
        if frame is None and not mailbox.done() and not message.link.closed:
            message.link.flush()

    def _build(self) -> None:
        enter_context(self._context)
        frame = self._create.frame
        assert frame is not None
        try:
            create, build = unpacked(frame)
            self.name = create.name
            self._region = create.region
            point = self._region.extent.point(self._region.local_rank(self._context.proc_rank))
            instance = ActorInstance(create.name, point, self.number)
            self._waits.are_of(f"{create.name}[{self._context.proc_rank}]")
            self._context = replace(self._context, actor_instance=instance, message_rank=point)
            enter_context(self._context)
            self._instance = build()
        except BaseException as error:
            if self._ends_the_proc(error):
                raise
            failure = self._failure(error)
            text = f"the constructor of {self.name!r} raised:\n{failure.formatted.rstrip()}"
            self._fall(text, error, answer=lambda: self._fail(self._create, failure))
        else:
            self._answer(self._create, None)
        finally:
            self._create = self._create._replace(frame=None)

    def _handle(self, message: Message) -> None:
        if self._instance is None:
            self._fail(message, self._gone())
            return
        try:
            result = self._invoke(message)
        except BaseException as error:
            if self._ends_the_proc(error):
                raise
            if message.is_cast:
                self._break(_BROADCAST, error)
            elif isinstance(error, _ENDS_THE_PROC):
                self._break("an endpoint", error)
                self._fail(message, self._gone())
            else:
                self._fail(message, self._failure(error))
        else:
            if result is not _LATER and not message.is_cast:
                self._answer(message, result)

    def _invoke(self, message: Message) -> Any:
        if message.frame is None:
            method, args, where = message.method, message.args, message.where
            kwargs: dict[str, Any] = {}
        else:
            method, args, kwargs, where = loads(message.frame.body, message.frame.buffers)
        waits = self._waits
        waits.endpoint = method
        waits.answers = message.call_mark
        run = self._endpoints.get(method) or self._endpoint(method)
        enter_context(self._contexts.get(where) or self._context_of(where))
        if type(run) is _Special:
            return self._invoke_special(run, message, args, kwargs)
        result = run(*args, **kwargs)
        return self._tasks.finish(result) if isinstance(result, CoroutineType) else result

    def _invoke_special(
        self, special: _Special, message: Message, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._waits.answers, port, mark = b"", None, message.call_mark
        if special.options.explicit_response_port:  # the port answers, which another may have
            port, mark = self._port_of(message), b""
            args = (port, *args)
        if special.options.concurrent:
            concluded = functools.partial(self._concluded, message, port)
            self._tasks.start(special.run(*args, **kwargs), concluded, mark)
            return _LATER
        try:
            result = special.run(*args, **kwargs)
            if inspect.iscoroutine(result):
                self._tasks.finish(result)
        except BaseException as error:
            if self._ends_the_proc(error):
                raise
            self._break(_EXPLICIT, error, port)
        return _LATER

    def _concluded(
        self,
        message: Message,
        port: ResponsePort | None,
        result: Any,
        error: BaseException | None,
    ) -> None:
        """What ran beside other messages has ended."""
        if port is None and not message.is_cast:
            if error is None:
                self._answer(message, result)
            else:
                self._fail(message, self._gone() if self._has_ended else self._failure(error))
            self._flush(message)
        elif error is not None and not self._has_ended:
            # Not here, in the loop: the instance's end runs the loop.
            self._escaped = (_BROADCAST if message.is_cast else _EXPLICIT, error, port)
            self._mailbox.put(None)

    def _endpoint(self, method: str) -> Callable[..., Any]:
        if method == RELOAD:
            return self._reload
        if method == TAKEN:
            return lambda: None
        options = endpoint_options(type(self._instance), method)
        run: Any = getattr(self._instance, method)
        if options.explicit_response_port or options.concurrent:
            run = _Special(run, options)
        self._endpoints[method] = run
        return run

    def _port_of(self, message: Message) -> ResponsePort:
        if message.is_cast:
            return ResponsePort(_nothing, _nothing, lambda: None)

        def answer(value: Any) -> None:
            self._answer(message, value)
            self._flush(message)

        def dropped() -> None:
            error = RuntimeError(f"an endpoint of {self.name!r} dropped its port unanswered")
            body, _ = dumps(self._gone() if self._has_ended else self._failure(error))
            with contextlib.suppress(LinkClosed):
                message.link.post(self._answering(message, Kind.ERROR, body, ()))

        return ResponsePort(answer, functools.partial(self._fail, message), dropped)

    def _reload(self, request: Any, modules: tuple[str, ...]) -> tuple[str, ...]:
        """Take what was edited: here, between two messages, nothing of this actor runs."""
        reloaded = reload_once(request, modules)
        renew(self._instance)
        self._endpoints.clear()
        return reloaded

    def _context_of(self, where: Any) -> Context:
        region = self._region if where is None else Region.unpack(where)
        point = region.extent.point(region.local_rank(self._context.proc_rank))
        if len(self._contexts) > _MAX_CONTEXTS:
            self._contexts.clear()
        made = self._contexts[where] = replace(self._context, message_rank=point)
        return made

    def _answer(self, message: Message, value: Any) -> None:
        frame = message.frame
        if is_plain((value,)):
            link = message.link
            try:
                if frame is None:
                    link.add(Kind.RESULTS, (message.number, value))
                else:
                    link.answer(frame, pickle.dumps(value, 5))
                if link.is_full:
                    link.make_room()
            except LinkClosed:
                pass  # the caller is gone
            return
        try:
            body, buffers = dumps(value)
        except Exception as error:
            text = f"the result of {self.name!r} cannot be sent: {type(error).__name__}: {error}"
            self._fail(message, self._failure(TypeError(text)))
            return
        self._send(message, Kind.RESULT, body, buffers)

    def _fail(self, message: Message, failure: Failure | CallCycle) -> None:
        if not message.is_cast:
            body, buffers = dumps(failure)
            self._send(message, Kind.ERROR, body, buffers)

    def _send(self, message: Message, kind: Kind, body: bytes, buffers: Any) -> None:
        with contextlib.suppress(LinkClosed):  # the caller is gone
            message.link.send(self._answering(message, kind, body, buffers))

    def _answering(self, message: Message, kind: Kind, body: bytes, buffers: Any) -> Frame:
        frame = message.frame
        if frame is None:
            return Frame(kind, body, buffers, message.number)
        return Frame(kind, body, buffers, frame.call, frame.mesh, frame.actor)

    def _flush(self, message: Message) -> None:
        """Send what was answered aside from the messages' order at once."""
        with contextlib.suppress(LinkClosed):
            message.link.flush()

    def _failure(self, error: BaseException, fatal: bool = False) -> Failure:
        return Failure.of(
            error,
            actor=self.name,
            rank=self._context.proc_rank,
            host=self._context.host,
            fatal=fatal,
        )

    def _gone(self) -> Failure:
        """Why nobody answers any more."""
        if self._broken is None:
            return self._failure(MeshStopped(f"{self.name!r} was stopped"), fatal=True)
        context = self._context
        where = f"rank {context.proc_rank} on {context.host}"
        error = SupervisionError(f"{self.name!r} does not exist in {where}: {self._broken}")
        error.about = self._about
        return self._failure(error, fatal=True)

    def _ends_the_proc(self, error: BaseException) -> bool:
        return isinstance(error, _ENDS_THE_PROC) and not self._is_guest

    @property
    def _has_ended(self) -> bool:
        return self._instance is None

    def _break(self, what: str, error: BaseException, port: ResponsePort | None = None) -> None:
        """End the instance: after this error nobody knows in which state it is."""
        self._escaped = None
        formatted = self._failure(error).formatted.rstrip()
        self._fall(f"{what} raised:\n{formatted}", error, port)

    def _fall(
        self,
        text: str,
        error: BaseException,
        port: ResponsePort | None = None,
        answer: Callable[[], Any] = lambda: None,
    ) -> None:
        """The actor has failed: everyone concerned is told, and the instance ends.

        The log comes first: who hears of it may end this process.
        """
        self._broken = text
        say(f"{self.name!r}: {text}")
        answer()
        if port is not None:
            port.fail(self._gone())
        rank, host = self._context.proc_rank, self._context.host
        told = f"{self.name!r} rank {rank} on {host}: {text}"
        self._family.failed(RankFailure(rank, host, told, is_new=self._has_ended))
        self._end_instance(error)

    # -- orders ---------------------------------------------------------------------------------

    def _obey(self, message: Message) -> None:
        assert message.frame is not None
        order: Order = loads(message.frame.body)
        enter_context(self._context)
        if isinstance(order, StopActor):
            self._end(message)
        elif self._has_ended:
            self._fail(message, self._gone())
        elif isinstance(order, Ready):
            self._answer(message, True)
        else:
            self._supervise(message, order.failure)
        self._flush(message)

    def _end(self, message: Message) -> None:
        """Be stopped, alone: the proc and its other actors stay."""
        self._drain()
        self._end_instance(None)
        self._stopping = True
        self._stop = message

    def retire(self) -> None:
        """Its thread is free and knows nothing of it: tell who stopped it, and who waits yet."""
        if self._stop is not None:
            self._answer(self._stop, None)
            self._flush(self._stop)
        self._drain()

    def _drain(self) -> None:
        """Refuse what waits and will not be handled any more."""
        for message in self._mailbox.clear():
            if message is not None:
                self._fail(message, self._gone())
                self._flush(message)

    def _supervise(self, message: Message, failure: MeshFailure) -> None:
        """Let the actor deal with a failure of a mesh of its own; else it fails with that."""
        error: BaseException
        self._waits.endpoint, self._waits.answers = "__supervise__", b""
        text = f"{self.name!r} did not deal with this: {failure.report()}"
        try:
            handled: Any = self._instance.__supervise__(failure)  # type: ignore[union-attr]
            if inspect.iscoroutine(handled):
                handled = self._tasks.finish(handled)
            error = SupervisionError(text)
        except BaseException as raised:
            if self._ends_the_proc(raised):
                raise
            handled, error = False, raised
            raised_text = self._failure(raised).formatted.rstrip()
            text = f"{text}\nits __supervise__ raised:\n{raised_text}"
        self._answer(message, bool(handled))
        if not handled:
            self._fall(text, error)

    def _clean_up(self, ended: BaseException | None) -> None:
        enter_context(self._context)
        try:
            self._end_instance(ended)
        finally:
            self._tasks.close()

    def _end_instance(self, ended: BaseException | None) -> None:
        instance, self._instance = self._instance, None
        self._endpoints.clear()
        if os.getpid() != self._pid:
            return
        enter_context(self._context)
        self._tasks.cancel()
        self._family.end_children(self._grace_s)
        if instance is not None:
            try:
                cleaning: Any = instance.__cleanup__(ended)  # type: ignore[func-returns-value]
                if inspect.iscoroutine(cleaning):
                    self._tasks.finish(cleaning)
            except Exception:
                print_error()


_BROADCAST = "a broadcast endpoint"
_EXPLICIT = "an endpoint with a response port"
_MAX_CONTEXTS = 1024


def _nothing(_value: Any) -> None:
    """Where the answer to a broadcast goes."""

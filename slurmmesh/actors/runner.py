"""One actor in its thread: a mailbox, the instance, and how its messages are answered."""

from __future__ import annotations

import asyncio
import inspect
import os
import queue
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from slurmmesh.actors.actor import Actor, is_endpoint
from slurmmesh.actors.context import Context, enter_context
from slurmmesh.actors.messages import Call, CreateActor, Failure
from slurmmesh.errors import LinkClosed, SupervisionError
from slurmmesh.shape import Region
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.reactor import print_error, say

_STOP = object()
_ENDS_THE_PROC = (SystemExit, KeyboardInterrupt)
"""Everything else that an endpoint raises fails its call alone."""


class ActorRunner:
    """Builds one actor and runs its messages one after the other.

    Args:
        frame: the CREATE frame.
        context: of the proc; the actor's name and the point called are filled in.
        region: of the whole proc mesh.
        send: sends an answer.
    """

    def __init__(
        self, frame: Frame, context: Context, region: Region, send: Callable[[Frame], Any]
    ) -> None:
        self._create = frame
        self._context = context
        self._region = region
        self._send = send
        self._mailbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._instance: Actor | None = None
        self._broken: str | None = None
        self._stopping = False
        self._pid = os.getpid()
        self._name = f"actor {frame.actor}"

    def post(self, frame: Frame) -> None:
        """Queue a CALL or CAST frame. From any thread."""
        self._mailbox.put(frame)

    def stop(self) -> None:
        """End after the running message; queued ones are dropped. From any thread."""
        self._stopping = True
        self._mailbox.put(_STOP)

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
        """Wait for a message and handle it. Nothing here outlives it: it may be large."""
        frame = self._mailbox.get()
        if frame is not _STOP and not self._stopping:
            self._handle(frame)

    def _build(self) -> None:
        enter_context(self._context)
        try:
            create: CreateActor = loads(self._create.body, self._create.buffers)
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
            self._answer(self._create, Kind.ERROR, failure)
        else:
            self._answer(self._create, Kind.RESULT, None)
        finally:
            self._create = replace(self._create, body=b"", buffers=())

    def _handle(self, frame: Frame) -> None:
        if self._instance is None:
            error = SupervisionError(f"{self._name!r} does not exist here: {self._broken}")
            self._reply(frame, Kind.ERROR, self._failure(error, fatal=True))
            return
        try:
            result = self._invoke(loads(frame.body, frame.buffers))
        except _ENDS_THE_PROC:
            raise
        except BaseException as error:
            if frame.kind is Kind.CAST:
                # Nobody waits for it: the actor is in a state that nobody knows.
                failure = self._failure(error)
                self._broken = f"a broadcast endpoint raised:\n{failure.formatted.rstrip()}"
                say(f"{self._name!r}: {self._broken}")
                self._end_instance(error)
            else:
                self._reply(frame, Kind.ERROR, self._failure(error))
        else:
            self._reply(frame, Kind.RESULT, result)

    def _invoke(self, call: Call) -> Any:
        instance = self._instance
        if not is_endpoint(type(instance), call.method):
            raise AttributeError(f"{type(instance).__name__} has no endpoint {call.method!r}")
        region = call.region or self._region
        point = region.extent.point(region.local_rank(self._context.proc_rank))
        enter_context(replace(self._context, point=point))
        result = getattr(instance, call.method)(*call.args, **call.kwargs)
        if inspect.iscoroutine(result):
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
            result = self._loop.run_until_complete(result)
        return result

    def _reply(self, frame: Frame, kind: Kind, value: Any) -> None:
        if frame.kind is not Kind.CAST:
            self._answer(frame, kind, value)

    def _answer(self, frame: Frame, kind: Kind, value: Any) -> None:
        try:
            body, buffers = dumps(value)
        except Exception as error:
            kind = Kind.ERROR
            text = f"the result of {self._name!r} cannot be sent: {type(error).__name__}: {error}"
            body, buffers = dumps(self._failure(TypeError(text)))
        rank = self._context.proc_rank
        try:
            self._send(Frame(kind, body, buffers, frame.call, frame.mesh, frame.actor, (rank,)))
        except LinkClosed:
            if os.getpid() != self._pid:  # an endpoint forked, and its child returned as well
                os._exit(0)
            self._stopping = True  # the host is gone, and this process with it

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
        if instance is not None and os.getpid() == self._pid:
            try:
                instance.__cleanup__(ended)
            except Exception:
                print_error()

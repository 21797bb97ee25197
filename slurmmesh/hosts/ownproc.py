"""Actors in the program's own process: those that are spawned on its ``this_proc()``.

Each runs in a thread of its own. What they are sent are copies, as everywhere. Procs reach them by
their hosts and the controller.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from slurmmesh.actors.addresses import CONTROLLER
from slurmmesh.actors.backlog import Mailboxes, is_counted, size_of, taken
from slurmmesh.actors.calls import CallBook
from slurmmesh.actors.context import Context
from slurmmesh.actors.created import Created
from slurmmesh.actors.deadlines import Deadlines
from slurmmesh.actors.failure import refusal
from slurmmesh.actors.future import Future
from slurmmesh.actors.incoming import Message
from slurmmesh.actors.owners import GRACE_S, Family, Owner
from slurmmesh.actors.runner import ActorRunner
from slurmmesh.actors.supervising import MAX_STOPPED, RankFailure, StopActor, order
from slurmmesh.errors import LinkClosed, MeshStopped, SupervisionError
from slurmmesh.hosts.relay import Way
from slurmmesh.shape import Extent, Region
from slurmmesh.wire.batches import BatchLink
from slurmmesh.wire.frames import Buffer, Frame, Kind
from slurmmesh.wire.reactor import Reactor, in_loop_thread, print_error

NAME = "this_proc"
REGION = Region(Extent((), ()))


class OwnProc:
    """The mesh of the one proc that the program itself is.

    Args:
        mesh: its id.
        reactor: for deadlines.
        failed: told the actor, its name, its owner, and what happened.
    """

    def __init__(
        self,
        mesh: int,
        reactor: Reactor,
        job_folder: Path | None,
        failed: Callable[[int, str, Owner, RankFailure], Any],
    ) -> None:
        self.mesh = mesh
        self.host = socket.gethostname()
        self._context = Context(mesh=NAME, host=self.host, job_folder=job_folder)
        self._failed = failed
        self._book = CallBook()
        self._reactor = reactor
        self._deadlines = Deadlines(reactor)
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._actors: dict[int, tuple[ActorRunner, threading.Thread]] = {}
        self._gone: dict[int, SupervisionError] = {}
        self._services: dict[str, int] = {}
        self._mailboxes = Mailboxes(None)
        self._closing = False

    def new_actor(self) -> int:
        """See ``Runtime.new_actor``."""
        return next(self._numbers)

    def get_or_create(self, body: Buffer, buffers: Sequence[Buffer], name: str) -> tuple[int, int]:
        """See ``Runtime.get_or_create``."""
        with self._lock:
            number = self._services.get(name, 0)
            if number not in self._actors:
                self._services[name] = number = self.new_actor()
                frame = Frame(Kind.CREATE, body, buffers, mesh=self.mesh, actor=number, ranks=(0,))
                self.create(frame, name, Owner(CONTROLLER))
            return self.mesh, number

    def create(self, frame: Frame, name: str, owner: Owner) -> Future[Any]:
        """See ``Runtime.create``."""
        what = f"building {name!r}"
        call, future = self._book.open(
            self.mesh,
            (0,),
            lambda _values: True,
            what,
            future=Created(what, self.mesh, frame.actor),
        )
        number = frame.actor
        message = self._message(replace(frame, call=call))
        family = Family(
            Owner(CONTROLLER, number), functools.partial(self._failed, number, name, owner)
        )
        soon = self._reactor.call_soon
        runner = ActorRunner(message, self._context, REGION, None, family, soon, is_guest=True)
        thread = threading.Thread(
            target=self._run, args=(runner,), name=f"slurmmesh-actor-{number}", daemon=True
        )
        with self._lock:
            if self._closing:
                raise MeshStopped("the job is being stopped")
            self._actors[number] = runner, thread
            try:
                thread.start()
            except RuntimeError as refused:  # the system has no room for another thread
                error = SupervisionError(f"{name!r} cannot run in the program's process: {refused}")
                self._forget(number, error)
                self._post(message, number)  # refused
        return future

    def call(
        self,
        frame: Frame,
        finish: Callable[[list[Any]], Any],
        what: str,
        timeout: float | None = None,
    ) -> Future[Any]:
        """See ``Runtime.call``."""
        call, future = self._book.open(self.mesh, (0,), finish, what)
        self._post(self._message(replace(frame, call=call)), frame.actor)
        if timeout is not None:
            self._deadlines.limit(
                future, timeout, what, 1, lambda: (0,), lambda error: self._book.fail(call, error)
            )
        self._posted(frame, timeout)
        return future

    def cast(self, frame: Frame) -> None:
        """See ``Runtime.cast``."""
        self._post(self._message(frame), frame.actor)
        self._posted(frame)

    def _posted(self, frame: Frame, timeout: float | None = None) -> None:
        """Wait while the actor has too much that it has not begun to handle."""
        actor = frame.actor
        size = self._mailboxes.count_one(actor, size_of(frame)) if is_counted(frame) else 0
        if not size:
            return
        sizes = {actor: size}
        self._mailboxes.mark(sizes)
        call = self._book.open_marker(
            self.mesh, (0,), lambda _ranks: self._mailboxes.arrived(sizes, (actor,))
        )
        self._post(self._message(replace(taken(self.mesh, actor, (0,)), call=call)), actor)
        if not (in_loop_thread() or self._lock._is_owned()):  # type: ignore[attr-defined]
            self._mailboxes.wait((actor,), timeout)

    def take(self, way: Way, frame: Frame) -> None:
        """Take a request of a proc of some host."""
        if frame.kind is Kind.CAST and frame.call:
            delivered = Frame(Kind.DELIVERED, b"", (), frame.call, frame.mesh, frame.actor, (0,))
            self._answer(way, delivered)
        link = _Back(way.post)
        self._post(Message(cast(BatchLink, link), frame), frame.actor)

    def stop_actors(self, actor: int) -> Future[None]:
        """See ``Runtime.stop_actors``."""
        done: Future[None] = Future("stopping an actor")
        stopping = self.call(
            order(StopActor(), self.mesh, actor, (0,)), lambda _values: None, "stopping an actor"
        )
        stopping.add_waker(lambda: done.set_result(None))
        return done

    def close(self, grace_s: float = GRACE_S) -> None:
        """End all actors, in order as far as they let us."""
        with self._lock:
            self._closing = True
            ending = list(self._actors.values())
        for runner, _ in ending:
            runner.stop(grace_s)
        for _, thread in ending:
            if thread is not threading.current_thread():
                thread.join(grace_s)
        self._book.fail_mesh(self.mesh, MeshStopped("the job was stopped"))

    def _message(self, frame: Frame) -> Message:
        """A request of this process, as a copy."""
        copied = replace(frame, buffers=[bytearray(each) for each in frame.buffers])
        return Message(cast(BatchLink, _Back(self._book.answer)), copied)

    def _post(self, message: Message, actor: int) -> None:
        with self._lock:
            found = self._actors.get(actor)
            if found is not None:
                found[0].post(message)
                return
        if message.is_cast:
            return
        error = self._gone.get(actor) or SupervisionError(
            f"there is no actor {actor} in the program's process"
        )
        assert message.frame is not None
        self._answer(message.link, refusal(message.frame, 0, self.host, error))

    def _answer(self, way: Any, frame: Frame) -> None:
        with contextlib.suppress(LinkClosed):
            way.post(frame)

    def _run(self, runner: ActorRunner) -> None:
        try:
            runner.run()
        except BaseException:  # out of its __cleanup__
            print_error()
        self._forget(runner.number, MeshStopped(f"{runner.name!r} was stopped"))
        runner.retire()

    def _forget(self, actor: int, why: SupervisionError) -> None:
        """It runs no more, or never did."""
        with self._lock:
            del self._actors[actor]
            self._gone[actor] = why
            if len(self._gone) > MAX_STOPPED:
                del self._gone[next(iter(self._gone))]


class _Back:
    """Stands for the link that a message came by: takes its answer, as a copy."""

    closed = is_full = False

    def __init__(self, take: Callable[[Frame], Any]) -> None:
        self._take = take

    def post(self, frame: Frame) -> None:
        """Take an answer."""
        buffers = [bytearray(each) for each in frame.buffers]
        self._take(replace(frame, buffers=buffers, ranks=(0,)))

    send = post

    def answer(self, request: Frame, body: bytes) -> None:
        """Take a result."""
        self.post(Frame(Kind.RESULT, body, (), request.call, request.mesh, request.actor))

    def flush(self) -> None:
        """Nothing waits here."""

"""What an actor waits for, and the probes it sends when that takes long (``actors/cycles.py``).

A call that an actor makes carries a mark, by which the actor called knows it again: calls of the
program have none, for nobody calls the program. A wait counts, and costs anything, only once it has
lasted for ``PATIENCE_S``; then the actor sends a probe where it waits for an answer, and again from
time to time, should one meet somebody who is not that far. Before a wait fails for a circle its
call is taken back, on the way that it went.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import threading
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from slurmmesh.actors.cycles import Probe, Standing, Wait, Withdrawal, Withdrawn
from slurmmesh.errors import CallCycle, SlurmmeshError
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import URGENT, Frame, Kind

if TYPE_CHECKING:
    import asyncio

    from slurmmesh.actors.future import Future
    from slurmmesh.actors.mesh import ActorMesh
    from slurmmesh.actors.tasks import Tasks

PATIENCE_S = 1.0
"""How long a wait lasts before a probe is sent; the next one after twice that, and so on."""
MARK_SIZE = 16
_COUNT_SIZE = 8
_END = b"\0"
"""The end of a mark. Pickles end otherwise."""


class Asked(NamedTuple):
    """A call that an actor made.

    Attributes:
        waits: of that actor.
        mark: bytes that no other call has.
        since: when, in seconds since the epoch.
        spare: see ``Wait``.
    """

    waits: Waits
    mark: bytes
    mesh: ActorMesh
    endpoint: str
    ranks: Sequence[int]
    since: float
    spare: int = 0

    def begin(self, wait: Wait, turn: int) -> None:
        """Send the probes of a wait for this call."""
        if not self.spare:
            self.send(Probe((wait,), turn))
            return
        for rank in self.ranks:
            self._replace(ranks=(rank,)).send(Probe((wait,), turn, rank))

    def send(self, probe: Probe) -> None:
        """Send a probe where the answer is to come from."""
        with contextlib.suppress(SlurmmeshError):  # the mesh is over: the call is told of that
            self.mesh._runtime.cast(self._frame(Kind.CAST, probe))

    def withdraw(self, error: CallCycle) -> Future[Any]:
        """Take the call back where it is not begun; done when that is known there."""
        frame = self._frame(Kind.CALL, Withdrawal(self.mark, error))
        return self.mesh._runtime.call(frame, lambda _values: None, "taking back a call")

    def _frame(self, kind: Kind, what: Probe | Withdrawal) -> Frame:
        mesh, body = self.mesh, dumps(what)[0]
        number = mesh._procs._mesh
        return Frame(kind, body, mesh=number, actor=mesh._actor, ranks=self.ranks, flags=URGENT)


class _Now(NamedTuple):
    """A wait of this actor. ``blocks``: nothing runs beside it."""

    standing: Standing
    asked: Asked
    future: Future[Any]
    blocks: bool


class _Awaited:
    """A future that the actor's endpoint awaits, and its wait once it counts."""

    __slots__ = ("asked", "future", "standing", "wait")

    def __init__(self, future: Future[Any], asked: Asked) -> None:
        self.future = future
        self.asked = asked
        self.standing: contextlib.ExitStack | None = None
        self.wait: Wait | None = None


class Waits:
    """The waits of one actor.

    Args:
        tasks: the actor's.
        queued: the marks of the calls in its mailbox.
        soon: has something done in a loop's thread.

    Attributes:
        actor: as people name it.
        endpoint: that is run now, or was last.
        answers: mark of the call to which the end of that endpoint is the answer.
        withdrawn: calls to this actor that others took back.
    """

    def __init__(
        self,
        tasks: Tasks,
        queued: Callable[[], Collection[bytes]],
        soon: Callable[..., Any],
    ) -> None:
        self.actor = ""
        self.endpoint = "__init__"
        self.answers = b""
        self.withdrawn = Withdrawn(queued)
        self._tasks = tasks
        self._queued = queued
        self._soon = soon
        self._thread = 0
        self._marks = os.urandom(MARK_SIZE - _COUNT_SIZE - len(_END))
        self._count = itertools.count(1)
        self._numbers = itertools.count(1)
        self._now: _Now | None = None
        self._awaited: _Awaited | None = None
        self._timer: asyncio.TimerHandle | None = None

    def are_of(self, actor: str) -> None:
        """Be those of this actor, in the thread that runs it."""
        self.actor = actor
        self._thread = threading.get_ident()

    def ask(self, mesh: ActorMesh, endpoint: str, ranks: Sequence[int]) -> Asked:
        """Note a call that the actor is about to make."""
        mark = self._marks + next(self._count).to_bytes(_COUNT_SIZE, "little") + _END
        return Asked(self, mark, mesh, endpoint, ranks, time.time())

    @property
    def are_waited_for(self) -> bool:
        """Whether somebody waits: to be handled, or, if it is an actor, for what is run to end."""
        running = (self.answers, *self._tasks.beside.values())
        return any(each.endswith(_END) for each in running) or bool(self._queued())

    @property
    def are_here(self) -> bool:
        """Whether the calling thread is the actor's: it takes no message while that waits."""
        return self._thread == threading.get_ident()

    def wait(self, future: Future[Any], asked: Asked, timeout: float | None) -> bool:
        """Wait until a future is done, at most so many seconds; whether it is."""
        if timeout is not None and timeout <= PATIENCE_S:
            return future.wait(timeout)
        if future.wait(PATIENCE_S):
            return True
        end = None if timeout is None else time.monotonic() + timeout - PATIENCE_S
        with self._standing(future, asked, blocks=True) as standing:
            for turn in itertools.count(1):
                asked.begin(standing.wait, turn)
                patience = PATIENCE_S * 2**turn
                if end is not None:
                    patience = min(patience, max(0.0, end - time.monotonic()))
                if future.wait(patience):
                    return True
                if end is not None and time.monotonic() >= end:
                    return False
        raise AssertionError("not reached")

    def suspended(
        self, future: Future[Any], asked: Asked, until_done: Generator[Any, None, None]
    ) -> Generator[Any, None, None]:
        """Await a future, which ``until_done`` does.

        It counts if the actor takes no other message meanwhile: not in a task of its own.
        """
        from asyncio import current_task, get_running_loop

        task = current_task()
        if task is None or not self.are_here or task.get_coro() is not self._tasks.main:
            yield from until_done
            return
        awaited = self._awaited = _Awaited(future, asked)
        if self._timer is None:  # one for many awaits: it looks whether the same one lasts
            loop = get_running_loop()
            self._timer = loop.call_later(PATIENCE_S, self._look, loop, None)
        try:
            yield from until_done
        finally:
            self._awaited = None
            if awaited.standing is not None:
                awaited.standing.close()
                self._timer.cancel()
                self._timer = None

    def _look(
        self, loop: asyncio.AbstractEventLoop, before: _Awaited | None, turn: int = 0
    ) -> None:
        """See whether what is awaited is what was before, and probe if so. In the actor's loop."""
        awaited = self._awaited
        if awaited is None:
            self._timer = None
            return
        turn = turn + 1 if awaited is before else 0
        self._timer = loop.call_later(PATIENCE_S * 2**turn, self._look, loop, awaited, turn)
        if turn == 1:
            awaited.standing = contextlib.ExitStack()
            awaited.wait = awaited.standing.enter_context(
                self._standing(awaited.future, awaited.asked)
            ).wait
        if awaited.wait is not None:
            awaited.asked.begin(awaited.wait, turn)

    def probed(self, frame: Frame) -> None:
        """Take a probe. From any thread."""
        self._soon(self._take, loads(frame.body))

    @contextlib.contextmanager
    def _standing(
        self, future: Future[Any], asked: Asked, blocks: bool = False
    ) -> Iterator[Standing]:
        before = self._now
        wait = Wait(
            self.actor,
            self.endpoint,
            asked.mark,
            asked.endpoint,
            asked.since,
            next(self._numbers),
            asked.spare,
        )
        standing = Standing(wait)
        self._now = _Now(standing, asked, future, blocks)
        try:
            yield standing
        finally:
            self._now = before

    def _take(self, probe: Probe) -> None:
        now = self._now
        if now is None:
            return
        found = now.standing.take(probe, functools.partial(self._owes, now.blocks))
        if isinstance(found, CallCycle):
            self._now = None  # it is over, and must be only when nobody will run that call
            fail = functools.partial(now.future.set_exception, found)
            now.asked.withdraw(found).add_waker(fail)
        elif found is not None:
            now.asked.send(found)

    def _owes(self, blocks: bool, mark: bytes) -> bool:
        held = self._tasks.beside.copy().values() if blocks else ()
        return mark == self.answers or mark in self._queued() or mark in held

"""What all operations of a communicator are made of: they are queued, waited for, and given up."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal, NoReturn

from slurmmesh.errors import (
    CollectiveError,
    CollectiveTimeout,
    DeviceBusy,
    GpuError,
    GpuForked,
    UsageError,
)
from slurmmesh.gpu import live
from slurmmesh.gpu.blame import Verdict, Waiting, Witnesses
from slurmmesh.gpu.calls import Call, Calls
from slurmmesh.gpu.failure import failure_of, unsupported
from slurmmesh.gpu.handle import Answer, Ended
from slurmmesh.gpu.identity import CommunicatorId
from slurmmesh.gpu.library import load
from slurmmesh.gpu.lifetime import IN_PROGRESS, READY, Lifetime
from slurmmesh.gpu.live import Moment, Operation
from slurmmesh.gpu.membership import Membership
from slurmmesh.gpu.pending import Pending
from slurmmesh.gpu.streams import Stream, is_busy, number_of
from slurmmesh.gpu.waiting import Deadline, seconds_of

if TYPE_CHECKING:
    from slurmmesh.gpu.communicator import Communicator

LOOK_S = 0.5
"""How often a rank that waits looks whether others have died."""
GRACE_S = 2.0
"""How long an operation may go on after the death of a rank: its part may be done."""
NEWS_S = 1.0
"""How long news of a death may be behind the library's error."""
_REMOTE = (2, 6)  # ncclSystemError, ncclRemoteError: often another rank's death
_OF_OTHERS = (0, *_REMOTE, 5)  # ncclInvalidUsage: ranks do not call the same

OnFailure = Literal["abort", "revoke"]
Make = Callable[[Any], None]
"""Has the library make a communicator, and put it where it is told."""


class Engine:
    """The inside of a ``Communicator``, which has the arguments checked and the calls made.

    Threads: ``issuing`` is held by the one that queues something.

    Attributes:
        timeout: seconds for joining, and for each operation that has none of its own.
        joining: the operation that this begins with.
        joined: all ranks have, as far as known.
        collectives: how many this rank has begun.
        growth: the id that this rank has made for others to join by.
    """

    def __init__(
        self,
        owner: Communicator,
        membership: Membership,
        *,
        timeout: float,
        on_failure: OnFailure,
        parent: Engine | None = None,
    ) -> None:
        """All but the library's communicator, which ``start`` makes.

        Args:
            owner: whose it is; only a weak reference is kept.
            parent: of the communicator that this one is made from.
        """
        if on_failure not in ("abort", "revoke"):
            raise UsageError(f"on_failure={on_failure!r}: it is abort or revoke")
        library = load()
        revoking = ("ccl_revoke", "ccl_shrink") if on_failure == "revoke" else ()
        for needed in ("ccl_init", *revoking):
            unsupported(library, needed)
        self.library = library
        self.membership = membership
        self.timeout = seconds_of(timeout)
        self.on_failure: OnFailure = on_failure
        self.joining = Operation("init", 0, time.time())
        self.collectives = 0
        self.issuing = threading.RLock()
        self.growth: CommunicatorId | None = None
        self.lifetime: Lifetime = Lifetime(
            owner, library, membership, parent.lifetime if parent else None
        )
        self._calls = Calls(library, membership.rank, membership.size, membership.device)
        self._witnesses = Witnesses(membership.key, membership.peers, membership.dead)
        self._parent = parent
        self._own_stream: Stream | None = None
        self._deadline = Deadline(self.timeout)  # of joining
        self._answer = Answer()  # of the call that joins
        self.joined = False

    def start(self, make: Make) -> None:
        """Join. ``wait`` waits for that."""
        self.lifetime.slot.begin(0, "init")
        handle = self.lifetime.handle
        self._answer = self.lifetime.lane.start(lambda: handle.make(make))

    # ------------------------------------------------------------------ queueing

    def calling(self, name: str) -> Calls:
        """What makes the call of an operation, which can be begun."""
        self.lifetime.check(name)
        return self._calls

    def run(self, calls: Sequence[Call], stream: Any, deadline: Deadline, wait: bool) -> None:
        """Queue operations that go out as one, and wait for their end."""
        number = self._stream_of(calls, stream)
        for call in calls:
            unsupported(self.library, call.function.removeprefix("sm_"))
        name = calls[0].name if len(calls) == 1 else "group"
        pairs = [call.peer for call in calls if call.peer is not None]
        collectives = len(calls) - len(pairs)
        peers = () if collectives else tuple(sorted(set(pairs)))
        with self.turn(name, deadline):
            self._wait_joined(deadline)
            operation = Operation(name, self.collectives + collectives, time.time(), peers)
            self._tell(operation, "begins")
            lent = tuple(buffer for call in calls for buffer in call.buffers) if wait else ()
            pending = Pending(operation, number, stream, lent)
            with self.lifetime.lock:
                self.collectives += collectives
                self.lifetime.pending.add(pending)
            self.lifetime.slot.begin(operation.sequence, name)
            with self._told(operation):
                self.make_calls(operation, deadline, lambda comm: self._queue(calls, comm, number))
        if wait:
            self._finish(pending, deadline)

    def _queue(self, calls: Sequence[Call], comm: int, stream: int) -> None:
        call = self.library.call
        if len(calls) == 1:
            call(calls[0].function, *calls[0].arguments, comm, stream)
            return
        call("sm_ccl_group_start")
        try:
            for each in calls:
                call(each.function, *each.arguments, comm, stream)
        except BaseException:
            with contextlib.suppress(GpuError):
                call("sm_ccl_group_end")
            raise
        call("sm_ccl_group_end")

    def make_calls(
        self, operation: Operation, deadline: Deadline, make: Callable[[int], None]
    ) -> None:
        """Have calls made with the library's communicator, and wait until it is ready again."""
        lifetime = self.lifetime

        def guarded() -> None:
            with lifetime.handle.using() as comm:
                make(comm)

        answer = lifetime.lane.start(guarded)
        self._until(answer.there, operation, deadline)
        try:
            answer.check()
        except Ended:
            raise lifetime.ended_error(operation.name) from None
        except GpuForked:
            raise
        except GpuError as error:
            self._fail(operation, cause=error)
        except BaseException as error:  # an interrupt: nobody knows what was queued
            lifetime.abort(f"{type(error).__name__} was raised amid {operation.name}")
            raise
        self._until(lambda: self._settled(operation), operation, deadline)

    def _stream_of(self, calls: Sequence[Call], stream: Any) -> int:
        if stream is not None:
            return number_of(stream)
        for call in calls:
            for buffer in call.buffers:
                if buffer.stream is not None:
                    return buffer.stream
        with self.lifetime.lock:
            if self._own_stream is None:
                self._own_stream = Stream(self.membership.device)
            return self._own_stream.number

    @contextlib.contextmanager
    def turn(self, name: str, deadline: Deadline) -> Iterator[None]:
        """This thread is the one that queues."""
        self.lifetime.check(name)
        if not self.issuing.acquire(timeout=min(deadline.left, threading.TIMEOUT_MAX)):
            operation = Operation(name, self.collectives, time.time())
            self._fail(operation, seconds=deadline.seconds)
        try:
            self.lifetime.check(name)
            yield
        finally:
            self.issuing.release()

    # ------------------------------------------------------------------ waiting

    def wait(self, deadline: Deadline) -> None:
        """Until all ranks have joined, and all that is queued has ended."""
        self.lifetime.check("wait")
        self._wait_joined(deadline)
        for pending in self.lifetime.pending.lasts:
            self._finish(pending, deadline)

    def _wait_joined(self, deadline: Deadline) -> None:
        if not self.joined:
            sooner = min(deadline, self._deadline, key=lambda one: one.left)
            self._until(self._has_joined, self.joining, sooner)

    def _has_joined(self) -> bool:
        if self.joined or not self._answer.there():
            return self.joined
        lifetime, parent = self.lifetime, self._parent
        try:
            self._answer.check()
        except Ended:
            raise lifetime.ended_error("init") from None
        except CollectiveError as error:  # of the communicator that this one is made from
            lifetime.abort(str(error), error)
            raise
        except GpuError as error:
            self._fail(self.joining, cause=error)
        with lifetime.using("init") as comm:
            made = comm != 0
        if not made and parent is not None and not parent.lifetime.how:
            parent._settled(self.joining)  # the library may tell of a failure there
        if not made or not self._settled(self.joining):
            return False
        self.joined = True
        self._parent = lifetime.parent = None
        lifetime.slot.end()
        return True

    def _finish(self, pending: Pending, deadline: Deadline) -> None:
        """Wait until an operation, and all before it in its stream, have ended."""
        operation = pending.operation

        def ended() -> bool:
            try:
                busy = is_busy(self.library, self.membership.device, pending.stream)
            except GpuError as error:
                self._fail(operation, cause=error)
            # An abort empties the stream, too: so this is asked last.
            return self._settled(operation) and not busy

        with self._told(operation):
            self._until(ended, operation, deadline)
        if self.lifetime.pending.done(pending):
            self.lifetime.slot.end()
        self._tell(operation, "ends")

    def _until(self, done: Callable[[], bool], operation: Operation, deadline: Deadline) -> None:
        """Wait; give up if the time is over, or if a rank that takes part is dead."""
        look = Deadline(LOOK_S)
        grace: Deadline | None = None
        while not done():
            self.lifetime.check(operation.name)
            if deadline.over:
                self._fail(operation, seconds=deadline.seconds)
            if look.over:
                look = Deadline(LOOK_S)
                if not self._witnesses.dead_ranks(operation.peers or self.membership.others):
                    grace = None
                elif grace is None:
                    grace = Deadline(GRACE_S)
                elif grace.over:
                    self._fail(operation)
            deadline.pause()

    def _settled(self, operation: Operation) -> bool:
        """The library is doing nothing of its own, and all is well."""
        state = self.lifetime.state(operation.name)
        if state not in (READY, IN_PROGRESS):
            self._fail(operation, code=state)
        return state == READY

    # ------------------------------------------------------------------ its state

    @property
    def ready(self) -> bool:
        """All ranks have joined, and it can be used. Raises if they cannot join."""
        usable = not self.lifetime.how and not self.lifetime.forked
        if not self.joined and usable:
            if self._deadline.over:
                self._fail(self.joining, seconds=self._deadline.seconds)
            self._has_joined()
        return self.joined and not self.lifetime.how and not self.lifetime.forked

    @property
    def operation(self) -> Operation | None:
        """The oldest that has not ended, as far as known here; None: there is none."""
        if self.lifetime.how:
            return None
        pending = self.lifetime.pending.oldest
        return pending.operation if pending else None if self.joined else self.joining

    @property
    def busy(self) -> bool:
        """The device is at an operation that was queued here."""
        device = self.membership.device
        with contextlib.suppress(GpuError):  # it tells whoever waits for it
            streams = [pending.stream for pending in self.lifetime.pending.lasts]
            return any(is_busy(self.library, device, stream) for stream in streams)
        return False

    def busy_error(self) -> DeviceBusy:
        """What the device is at, and who is to blame, for somebody else who waits for that."""
        operation = self.operation or self.joining
        seconds = round(time.time() - operation.since, 1)
        verdict = self._judge(operation, READY)
        return failure_of(
            *(self.library, self.membership, operation, verdict), kind=DeviceBusy, seconds=seconds
        )

    def async_error(self) -> Exception | None:
        """What has gone wrong meanwhile, as an operation would raise it; None: nothing."""
        operation = self.operation or Operation("", self.collectives, time.time())
        try:
            state = self.lifetime.state(operation.name)
        except (GpuError, UsageError) as error:
            return error
        if state in (READY, IN_PROGRESS):
            return None
        verdict = self._judge(operation, READY)
        return self._error(operation, verdict, code=state, said=self._last_words())

    # ------------------------------------------------------------------ its end

    def finalize(self, deadline: Deadline) -> None:
        """Wait for what is queued, and give it back, unless somebody has ended it."""
        self.wait(deadline)
        operation = Operation("finalize", self.collectives, time.time())
        with self.turn(operation.name, deadline):
            self.lifetime.slot.begin(operation.sequence, "finalize")
            if self.library.has("ccl_finalize"):
                self.make_calls(
                    operation, deadline, lambda comm: self.library.call("sm_ccl_finalize", comm)
                )
            answer = self.lifetime.finalize()
            if answer is None:
                return
            while not answer.there() and not deadline.over:
                deadline.pause()
            self.lifetime.close()
            if not answer.there():
                raise self._error(operation, Verdict(), seconds=deadline.seconds)
            answer.check()

    @contextlib.contextmanager
    def ended_if_amid(self, name: str) -> Iterator[None]:
        """Whatever is raised amid it, as by a signal handler, leaves ranks in different places and
        the library at work: it ends the communicator."""
        try:
            yield
        except UsageError:
            raise  # before anything was begun
        except BaseException as error:
            if not self.lifetime.how:
                self.lifetime.abort(f"{type(error).__name__} was raised amid {name}")
            raise

    # ------------------------------------------------------------------ giving up

    def _fail(
        self,
        operation: Operation,
        *,
        seconds: float | None = None,
        code: int = 0,
        cause: GpuError | None = None,
    ) -> NoReturn:
        """Find out who is to blame, end the communicator, and raise the error."""
        lifetime = self.lifetime
        if lifetime.how:
            raise lifetime.ended_error(operation.name)
        code = cause.code if cause else code
        # Of some failures nobody else is to blame: a stream that is none, no memory.
        verdict = self._judge(operation, code) if code in _OF_OTHERS else Verdict()
        said = self._last_words() if seconds is not None or code else ""
        error = self._error(operation, verdict, seconds=seconds, code=code, said=said, cause=cause)
        with contextlib.suppress(GpuError):  # what failed first is told
            if self.on_failure == "revoke" and self.joined:
                lifetime.revoke(str(error), self.timeout, error)
            else:
                lifetime.abort(str(error), error)
        raise error from cause

    def _error(
        self, operation: Operation, verdict: Verdict, *, seconds: float | None = None, **how: Any
    ) -> CollectiveError:
        kind = CollectiveError if seconds is None else CollectiveTimeout
        return failure_of(
            *(self.library, self.membership, operation, verdict), kind=kind, seconds=seconds, **how
        )

    def _tell(self, operation: Operation, moment: Moment) -> None:
        owner = self.lifetime.owner()
        if owner is not None:  # as it always is: it is what the operation is called of
            live.tell(owner, operation, moment)

    @contextlib.contextmanager
    def _told(self, operation: Operation) -> Iterator[None]:
        """Watchers hear of a failure."""
        try:
            yield
        except CollectiveError:
            self._tell(operation, "fails")
            raise

    def _judge(self, operation: Operation, code: int) -> Verdict:
        paired = bool(operation.peers)
        others = operation.peers or self.membership.others
        waiting = Waiting(operation.name, operation.sequence, others, paired)
        verdict = self._witnesses.judge(waiting)
        patience = Deadline(NEWS_S)
        while code in _REMOTE and not verdict.dead and not patience.over:
            patience.pause()
            verdict = self._witnesses.judge(waiting)
        return verdict

    def _last_words(self) -> str:
        if not self.library.has("ccl_last_error"):
            return ""
        with contextlib.suppress(Ended, GpuError), self.lifetime.handle.using() as comm:
            return self.library.text("sm_ccl_last_error_text", comm)
        return ""

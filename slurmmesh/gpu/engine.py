"""What all operations of a communicator are made of: they are queued, waited for, and given up."""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn

from slurmmesh.errors import CollectiveAborted, CollectiveError, GpuError, GpuForked, UsageError
from slurmmesh.gpu import live
from slurmmesh.gpu.blame import Dead, Verdict, Waiting, Witnesses
from slurmmesh.gpu.calls import Call, Calls
from slurmmesh.gpu.failure import failure_of, unsupported
from slurmmesh.gpu.handle import Ended, Handle, Lane, SlowLane
from slurmmesh.gpu.library import load
from slurmmesh.gpu.live import Operation
from slurmmesh.gpu.peers import Peer
from slurmmesh.gpu.pending import Pending, Queue
from slurmmesh.gpu.progress import Slot, own_board
from slurmmesh.gpu.streams import Stream, is_busy, number_of
from slurmmesh.gpu.waiting import Deadline

LOOK_S = 0.5
"""How often a rank that waits looks whether others have died."""
GRACE_S = 2.0
"""How long an operation may go on after the death of a rank: its part may be done."""
NEWS_S = 1.0
"""How long news of a death may be behind the library's error."""
READY, IN_PROGRESS = 0, 7  # enum sm_ccl_state
_REMOTE = (2, 6)  # ncclSystemError, ncclRemoteError: often another rank's death
_OF_OTHERS = (0, *_REMOTE, 5)  # ncclInvalidUsage: ranks do not call the same
_LONGEST_S = 1e9  # a timeout may be an int that is no float
_MAX_RANKS = 1 << 20

OnFailure = Literal["abort", "revoke"]
_How = Literal["", "finalized", "aborted", "revoked"]


class Engine:
    """The inner part of ``Communicator``, whose attributes it has.

    Threads: ``_issuing`` is held by the one that queues something; ``_lock`` for a moment, for the
    state. Whoever ends the communicator takes neither for long: it sets ``_how`` and frees the
    handle, and the others find that out at their next look (``_using``).
    """

    def _set_up(
        self,
        name: str,
        key: bytes,
        rank: int,
        size: int,
        device: int,
        peers: dict[int, Peer],
        *,
        dead: Dead | None,
        timeout: float,
        on_failure: OnFailure,
        parent: Engine | None = None,
    ) -> None:
        """All but the library's communicator, which ``_start`` makes."""
        if type(size) is not int or type(rank) is not int or not 0 <= rank < size <= _MAX_RANKS:
            raise UsageError(f"rank {rank!r} of {size!r}: ranks are 0 to size - 1")
        if not all(0 <= one < size for one in peers):
            raise UsageError(f"peers are of ranks {sorted(peers)}; ranks are 0 to {size - 1}")
        if on_failure not in ("abort", "revoke"):
            raise UsageError(f"on_failure={on_failure!r}: it is abort or revoke")
        library = load()
        for needed in (
            "ccl_init",
            *(("ccl_revoke", "ccl_shrink") if on_failure == "revoke" else ()),
        ):
            unsupported(library, needed)
        self._library = library
        self.name, self.rank, self.size, self.device = name, rank, size, device
        self.timeout = seconds_of(timeout)
        self.peers = peers
        self._on_failure = on_failure
        self.dead = dead
        self._witnesses = Witnesses(key, peers, dead)
        self._others = tuple(other for other in range(size) if other != rank)
        self._calls = Calls(library, rank, size, device)
        self._pid = os.getpid()
        self._parent = parent
        self._growth: Any = None
        self._lock = threading.RLock()  # of what follows; a signal handler may abort at any point
        self._how: _How = ""
        self._reason = ""
        self._cause: CollectiveError | None = None
        self._pending = Queue(self._lock)
        self._collectives = 0
        self._issuing = threading.RLock()  # held while something is queued
        self._local = threading.local()
        self._own_stream: Stream | None = None
        self._handle = Handle(library)
        direct = library.has("ccl_init_config")  # else there is no init that returns at once
        self._lane: Lane = Lane() if direct else SlowLane(f"communicator {name}")
        self._slot = own_board().slot(key, rank)
        self._closing = weakref.finalize(self, _abandon, self._handle, self._lane, self._slot)
        live.add(self)

    def _start(self, make: Callable[[Any], None]) -> None:
        self._joining = Operation("init", 0, time.time())
        self._joined = False
        self._deadline = Deadline(self.timeout)
        self._slot.begin(0, "init")
        handle = self._handle
        self._answer = self._lane.start(lambda: handle.make(make))

    # ------------------------------------------------------------------ queueing

    def _calling(self, name: str) -> Calls:
        """What makes the call of an operation, which can be begun."""
        self._check_usable(name)
        return self._calls

    def _do(
        self, call: Call, *, stream: Any = None, timeout: float | None = None, wait: bool = True
    ) -> None:
        group: list[Call] | None = getattr(self._local, "group", None)
        if group is None:
            self._run([call], stream, timeout, wait)
        elif stream is not None or timeout is not None or not wait:
            raise UsageError("stream, timeout and wait are those of the group")
        else:
            group.append(call)

    def _run(self, calls: Sequence[Call], stream: Any, timeout: float | None, wait: bool) -> None:
        """Queue operations that go out as one, and wait for their end."""
        deadline = Deadline(self.timeout if timeout is None else seconds_of(timeout))
        number = self._stream_of(calls, stream)
        for call in calls:
            unsupported(self._library, call.function.removeprefix("sm_"))
        name = calls[0].name if len(calls) == 1 else "group"
        pairs = [call.peer for call in calls if call.peer is not None]
        collectives = len(calls) - len(pairs)
        peers = () if collectives else tuple(sorted(set(pairs)))
        with self._turn(name, deadline):
            self._wait_joined(deadline)
            operation = Operation(name, self._collectives + collectives, time.time(), peers)
            live.tell(self, operation, "begins")
            lent = tuple(buffer for call in calls for buffer in call.buffers) if wait else ()
            pending = Pending(operation, number, stream, lent)
            with self._lock:
                self._collectives += collectives
                self._pending.add(pending)
            self._slot.begin(operation.sequence, name)
            with self._told(operation):
                self._make_calls(operation, deadline, lambda comm: self._queue(calls, comm, number))
        if wait:
            self._finish(pending, deadline)

    def _queue(self, calls: Sequence[Call], comm: int, stream: int) -> None:
        call = self._library.call
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

    def _make_calls(
        self, operation: Operation, deadline: Deadline, make: Callable[[int], None]
    ) -> None:
        """Have calls made with the library's communicator, and wait until it is ready again."""

        def guarded() -> None:
            with self._handle.using() as comm:
                make(comm)

        answer = self._lane.start(guarded)
        self._until(answer.there, operation, deadline)
        try:
            answer.check()
        except Ended:
            raise self._ended_error(operation.name) from None
        except GpuForked:
            raise
        except GpuError as error:
            self._fail(operation, cause=error)
        except BaseException as error:  # an interrupt: nobody knows what was queued
            self._abort(f"{type(error).__name__} was raised amid {operation.name}", None)
            raise
        self._until(lambda: self._settled(operation), operation, deadline)

    def _stream_of(self, calls: Sequence[Call], stream: Any) -> int:
        if stream is not None:
            return number_of(stream)
        for call in calls:
            for buffer in call.buffers:
                if buffer.stream is not None:
                    return buffer.stream
        with self._lock:
            if self._own_stream is None:
                self._own_stream = Stream(self.device)
            return self._own_stream.number

    @contextlib.contextmanager
    def _turn(self, name: str, deadline: Deadline) -> Iterator[None]:
        """This thread is the one that queues."""
        self._check_usable(name)
        if not self._issuing.acquire(timeout=min(deadline.left, threading.TIMEOUT_MAX)):
            operation = Operation(name, self._collectives, time.time())
            self._fail(operation, seconds=deadline.seconds)
        try:
            self._check_usable(name)
            yield
        finally:
            self._issuing.release()

    # ------------------------------------------------------------------ waiting

    def _wait_joined(self, deadline: Deadline) -> None:
        if not self._joined:
            sooner = min(deadline, self._deadline, key=lambda one: one.left)
            self._until(self._has_joined, self._joining, sooner)

    def _has_joined(self) -> bool:
        if self._joined or not self._answer.there():
            return self._joined
        try:
            self._answer.check()
        except Ended:
            raise self._ended_error("init") from None
        except CollectiveError as error:  # of the communicator that this one is made from
            self._abort(str(error), error)
            raise
        except GpuError as error:
            self._fail(self._joining, cause=error)
        with self._using("init") as comm:
            made = comm != 0
        if not made and self._parent is not None and not self._parent._how:
            self._parent._settled(self._joining)  # the library may tell of a failure there
        if not made or not self._settled(self._joining):
            return False
        self._joined = True
        self._parent = None
        self._slot.end()
        return True

    def _finish(self, pending: Pending, deadline: Deadline) -> None:
        """Wait until an operation, and all before it in its stream, have ended."""
        operation = pending.operation

        def ended() -> bool:
            try:
                busy = is_busy(self._library, self.device, pending.stream)
            except GpuError as error:
                self._fail(operation, cause=error)
            # An abort empties the stream, too: so this is asked last.
            return self._settled(operation) and not busy

        with self._told(operation):
            self._until(ended, operation, deadline)
        if self._pending.done(pending):
            self._slot.end()
        live.tell(self, operation, "ends")

    def _until(self, done: Callable[[], bool], operation: Operation, deadline: Deadline) -> None:
        """Wait; give up if the time is over, or if a rank that takes part is dead."""
        look = Deadline(LOOK_S)
        grace: Deadline | None = None
        while not done():
            self._check_usable(operation.name)
            if deadline.over:
                self._fail(operation, seconds=deadline.seconds)
            if look.over:
                look = Deadline(LOOK_S)
                if not self._witnesses.dead_ranks(operation.peers or self._others):
                    grace = None
                elif grace is None:
                    grace = Deadline(GRACE_S)
                elif grace.over:
                    self._fail(operation)
            deadline.pause()

    def _settled(self, operation: Operation) -> bool:
        """The library is doing nothing of its own, and all is well."""
        state = self._state(operation.name)
        if state not in (READY, IN_PROGRESS):
            self._fail(operation, code=state)
        return state == READY

    def _state(self, name: str) -> int:
        with self._using(name) as comm:
            return self._library.ask("sm_ccl_async_error", comm) if comm else IN_PROGRESS

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
        with self._lock:
            how = self._how
        if how:
            raise self._ended_error(operation.name)
        code = cause.code if cause else code
        # Of some failures nobody else is to blame: a stream that is none, no memory.
        verdict = self._judge(operation, code) if code in _OF_OTHERS else Verdict()
        said = self._last_words() if seconds is not None or code else ""
        error = failure_of(
            self, operation, verdict, seconds=seconds, code=code, said=said, cause=cause
        )
        with contextlib.suppress(GpuError):  # what failed first is told
            if self._on_failure == "revoke" and self._joined:
                self._revoke(str(error), error)
            else:
                self._abort(str(error), error)
        raise error from cause

    @contextlib.contextmanager
    def _told(self, operation: Operation) -> Iterator[None]:
        """Watchers hear of a failure."""
        try:
            yield
        except CollectiveError:
            live.tell(self, operation, "fails")
            raise

    def _judge(self, operation: Operation, code: int) -> Verdict:
        paired = bool(operation.peers)
        waiting = Waiting(
            operation.name, operation.sequence, operation.peers or self._others, paired
        )
        verdict = self._witnesses.judge(waiting)
        patience = Deadline(NEWS_S)
        while code in _REMOTE and not verdict.dead and not patience.over:
            patience.pause()
            verdict = self._witnesses.judge(waiting)
        return verdict

    def _last_words(self) -> str:
        if not self._library.has("ccl_last_error"):
            return ""
        with contextlib.suppress(Ended, GpuError), self._handle.using() as comm:
            return self._library.text("sm_ccl_last_error_text", comm)
        return ""

    def _abort(self, reason: str, cause: CollectiveError | None) -> None:
        with self._lock:
            if self._how not in ("finalized", "aborted"):
                self._how, self._reason, self._cause = "aborted", reason, cause
        parent = self._parent
        if parent is not None and not self._handle.made:
            parent._abort(reason, cause)  # only so does the library end what it has begun
        try:
            self._handle.end()
        finally:
            self._closed()

    def _revoke(self, reason: str, cause: CollectiveError | None) -> None:
        with self._lock:
            if self._how:
                return
            self._how, self._reason, self._cause = "revoked", reason, cause
        deadline = Deadline(self.timeout)
        state = IN_PROGRESS
        try:
            with self._handle.using() as comm:
                self._library.call("sm_ccl_revoke", comm)
            while state == IN_PROGRESS and not deadline.over:
                deadline.pause()
                with self._handle.using() as comm:
                    state = self._library.ask("sm_ccl_async_error", comm)
        except Ended:
            return
        self._slot.end()

    def _closed(self) -> None:
        """It is of no more use."""
        live.remove(self)
        self._slot.leave()
        self._lane.close()
        self._pending.close()

    # ------------------------------------------------------------------ whether it can be used

    @property
    def emulated(self) -> bool:
        """The library is slurmmesh's emulator: nothing done with it was done by a GPU."""
        return self._library.emulated

    @property
    def library_path(self) -> str:
        """Of RCCL or NCCL."""
        return self._library.path("ccl")

    @property
    def _forked(self) -> bool:
        return self._pid != os.getpid()

    @contextlib.contextmanager
    def _using(self, name: str) -> Iterator[int]:
        self._check_usable(name)
        try:
            with self._handle.using() as comm:
                yield comm
        except Ended:
            raise self._ended_error(name) from None

    def _check_usable(self, name: str) -> None:
        if self._forked:
            raise GpuForked(
                f"the communicator {self.name!r} belongs to process {self._pid}, which forked this "
                "one. Make one after the fork, or in a process started afresh"
            )
        if self._how:
            raise self._ended_error(name)

    def _ended_error(self, name: str) -> Exception:
        with self._lock:
            how, reason, cause = self._how, self._reason, self._cause
        if how == "finalized":
            return UsageError(f"the communicator {self.name!r} was finalized: make a new one")
        if how == "aborted":
            self._handle.wait_freed()  # from then on nothing uses the tensors
        return CollectiveAborted(
            f"the communicator was {how}: {reason}",
            operation=name,
            world=self.name,
            rank=self.rank,
            size=self.size,
            peers=cause.peers if cause else (),
            late=cause.late if cause else (),
            library=self.library_path,
        )


def seconds_of(timeout: Any) -> float:
    """A timeout, checked."""
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise UsageError(f"timeout={timeout!r}: it is a number of seconds, more than 0")
    return float(min(timeout, _LONGEST_S))


def _abandon(handle: Handle, lane: Lane, slot: Slot) -> None:
    """For a communicator that nobody has any more."""
    with contextlib.suppress(GpuError):
        handle.end()
    slot.leave()
    lane.close()

"""How long a process has a communicator of the library, and what it holds meanwhile."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Literal

from slurmmesh.errors import CollectiveAborted, CollectiveError, GpuError, GpuForked, UsageError
from slurmmesh.gpu import live
from slurmmesh.gpu.handle import Answer, Ended, Handle, Lane, SlowLane
from slurmmesh.gpu.library import Library
from slurmmesh.gpu.membership import Membership
from slurmmesh.gpu.pending import Queue
from slurmmesh.gpu.progress import Slot, own_board
from slurmmesh.gpu.waiting import Deadline

if TYPE_CHECKING:
    from slurmmesh.gpu.communicator import Communicator

How = Literal["", "finalized", "aborted", "revoked"]
READY, IN_PROGRESS = 0, 7  # enum sm_ccl_state


class Lifetime:
    """It can be used until somebody ends it, from any thread and at any time.

    Whoever does holds no lock for long: it sets ``how`` and frees the handle, and the others find
    that out at their next look (``using``). What was revoked can still be shrunk, then aborted.

    Attributes:
        how: it was ended; empty: it can be used.
        owner: whose it is; weak, so that it is aborted when nobody has the communicator any more.
        handle, lane: the library's communicator, and what makes calls with it.
        slot: where other processes read how far this one is.
        pending: what is queued.
        parent: of the communicator that this one is made from; None once that is done.
        lock: of the state, held for a moment. A signal handler may abort at any point.
    """

    def __init__(
        self,
        owner: Communicator,
        library: Library,
        membership: Membership,
        parent: Lifetime | None,
    ) -> None:
        self.how: How = ""
        self.owner = weakref.ref(owner)
        self.parent = parent
        self.lock = threading.RLock()
        self.pending = Queue(self.lock)
        self.handle = Handle(library)
        direct = library.has("ccl_init_config")  # else there is no init that returns at once
        self.lane: Lane = Lane() if direct else SlowLane(f"communicator {membership.name}")
        self.slot = own_board().slot(membership.key, membership.rank)
        self._library = library
        self._membership = membership
        self._pid = os.getpid()
        self._reason = ""
        self._peers: tuple[int, ...] = ()  # to blame for the end
        self._late: tuple[int, ...] = ()
        # It holds nothing of this: not even an error, whose traceback has the owner.
        weakref.finalize(owner, _abandon, self.handle, self.lane, self.slot)

    # ------------------------------------------------------------------ whether it can be used

    @property
    def forked(self) -> bool:
        """This process is a child of the one that made it."""
        return self._pid != os.getpid()

    def check(self, name: str) -> None:
        """Raises what the operation ``name`` raises if it was ended."""
        if self.forked:
            raise GpuForked(
                f"the communicator {self._membership.name!r} belongs to process {self._pid}, which "
                "forked this one. Make one after the fork, or in a process started afresh"
            )
        if self.how:
            raise self.ended_error(name)

    @contextlib.contextmanager
    def using(self, name: str) -> Iterator[int]:
        """The library's communicator, for a call; 0 while it is being made. Raises as ``check``."""
        self.check(name)
        try:
            with self.handle.using() as comm:
                yield comm
        except Ended:
            raise self.ended_error(name) from None

    def ended_error(self, name: str) -> Exception:
        """The error of an operation that comes after the end, or is ended by it."""
        with self.lock:
            how, reason, peers, late = self.how, self._reason, self._peers, self._late
        of = self._membership
        if how == "finalized":
            return UsageError(f"the communicator {of.name!r} was finalized: make a new one")
        if how == "aborted":
            self.handle.wait_freed()  # from then on nothing uses the tensors
        return CollectiveAborted(
            f"the communicator was {how}: {reason}",
            operation=name,
            world=of.name,
            rank=of.rank,
            size=of.size,
            peers=peers,
            late=late,
            library=self._library.path("ccl"),
        )

    def state(self, name: str) -> int:
        """What the library says of it: ``READY``, ``IN_PROGRESS``, or the code of an error."""
        with self.using(name) as comm:
            return self._library.ask("sm_ccl_async_error", comm) if comm else IN_PROGRESS

    # ------------------------------------------------------------------ its end

    def finalize(self) -> Answer | None:
        """Give it back in order; ``close`` comes next. None: somebody had ended it."""
        with self.lock:
            if self.how:
                return None
            self.how = "finalized"
        return self.lane.start(lambda: self.handle.end("sm_ccl_destroy"))

    def abort(self, reason: str, cause: CollectiveError | None = None) -> None:
        """End it at once. Once it has ended, and in a forked child, does nothing."""
        if self.forked:
            return
        with self.lock:
            if self.how not in ("finalized", "aborted"):
                self._ended("aborted", reason, cause)
        parent = self.parent
        if parent is not None and not self.handle.made:
            parent.abort(reason, cause)  # only so does the library end what it has begun
        try:
            self.handle.end()
        finally:
            self.close()

    def revoke(self, reason: str, seconds: float, cause: CollectiveError | None = None) -> None:
        """Allow no more operations, and end those that are under way, within ``seconds``."""
        with self.lock:
            if self.how:
                return
            self._ended("revoked", reason, cause)
        deadline = Deadline(seconds)
        state = IN_PROGRESS
        try:
            with self.handle.using() as comm:
                self._library.call("sm_ccl_revoke", comm)
            while state == IN_PROGRESS and not deadline.over:
                deadline.pause()
                with self.handle.using() as comm:
                    state = self._library.ask("sm_ccl_async_error", comm)
        except Ended:
            return
        self.slot.end()

    def close(self) -> None:
        """It is of no more use: let go of all that it holds."""
        owner = self.owner()
        if owner is not None:
            live.remove(owner)
        self.slot.leave()
        self.lane.close()
        self.pending.close()

    def _ended(self, how: How, reason: str, cause: CollectiveError | None) -> None:
        self.how, self._reason = how, reason
        if cause is not None:
            self._peers, self._late = cause.peers, cause.late


def _abandon(handle: Handle, lane: Lane, slot: Slot) -> None:
    """For a communicator that nobody has any more."""
    with contextlib.suppress(GpuError):
        handle.end()
    slot.leave()
    lane.close()

"""Collectives between processes: a rank's communicator, whose operations end, or fail in time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from slurmmesh.errors import GpuError, UsageError
from slurmmesh.gpu import regroup
from slurmmesh.gpu.blame import Dead, Verdict
from slurmmesh.gpu.calls import Call, Reduction
from slurmmesh.gpu.device import device_at
from slurmmesh.gpu.engine import IN_PROGRESS, READY, Engine, OnFailure, seconds_of
from slurmmesh.gpu.failure import failure_of, unsupported
from slurmmesh.gpu.handle import SlowLane
from slurmmesh.gpu.identity import CommunicatorId
from slurmmesh.gpu.live import Operation
from slurmmesh.gpu.peers import Peer, peers_by_rank
from slurmmesh.gpu.waiting import Deadline

TIMEOUT_S = 600.0


class Communicator(Engine):
    """A rank of a communicator, and its operations.

    An operation is queued on a stream and waited for (``wait=False``: only queued; then the tensor
    must live until ``wait()``). It ends in time, or with an error that says who is to blame. With
    any such error the communicator is aborted here; the other ranks get an error in their turn.

    Any thread may use it; ranks must queue the same operations in the same order, so that is a
    matter of one thread, as a rule. ``abort`` may be called at any time, and frees whoever waits.
    It ends with ``finalize()`` or the end of ``with``; what is left at the end of the interpreter,
    or that nobody has any more, is aborted. It does not travel by pickle and not into a forked
    child.

    Attributes:
        name: for errors and logs.
        rank, size: of this process in it.
        device: index of the device, among those that this process sees.
        timeout: seconds that an operation has, unless the call says otherwise.
        peers: the processes that are its ranks, as far as known, by rank.
    """

    def __init__(
        self,
        id: CommunicatorId,
        rank: int,
        size: int,
        *,
        device: int = 0,
        peers: Iterable[Peer] = (),
        dead: Dead | None = None,
        blocking: bool = True,
        timeout: float = TIMEOUT_S,
        on_failure: OnFailure = "abort",
    ) -> None:
        """Join, as all other ranks do.

        Args:
            id: made by one process for all (``CommunicatorId.new``).
            rank, size: of this process; ranks are counted from 0.
            device: index of the device; each rank has one of its own.
            peers: of all ranks, each made there by ``this_peer``: by them ranks on this host that
                have died, or have not arrived, are found and named.
            dead: tells which ranks are dead, of all hosts: as the program knows from its
                supervision. It is called often and from any thread, so it answers from memory.
            blocking: wait for the others. Else the first operation does, or ``wait()``.
            timeout: seconds for joining, and for each operation.
            on_failure: ``revoke`` keeps a communicator that failed, for ``shrink``.

        Raises:
            UsageError: the arguments make no sense.
            GpuUnavailable: there is no GPU library, no library for collectives, or no device.
            GpuUnsupported: the library cannot revoke.
            CollectiveTimeout: some ranks did not come in time; ``peers`` are those, if known.
            CollectiveError: it failed otherwise.
        """
        _check_id(id)
        self._set_up(
            *(id.name, id.key, rank, size, device_at(device).index, peers_by_rank(peers)),
            dead=dead,
            timeout=timeout,
            on_failure=on_failure,
        )
        arguments = (id.data, rank, size, self.device, int(isinstance(self._lane, SlowLane)))
        self._start(lambda pointer: self._library.call("sm_ccl_init", pointer, *arguments))
        if blocking:
            self.wait()

    # ------------------------------------------------------------------ operations

    def all_reduce(
        self, tensor: Any, op: Reduction = "sum", *, out: Any = None, **how: Any
    ) -> None:
        """Reduce over all ranks; each gets the result, in ``out`` or in place.

        Args, of all operations:
            tensor, out: a dense tensor of torch on the device, ``DeviceMemory`` (as bytes), or
                anything with ``__cuda_array_interface__``.
            op: ``sum``, ``product``, ``max``, ``min`` or ``average``.
            stream: ``Stream``, a stream of torch, a handle, or 0 for the default stream. Unless
                given: torch's current one for tensors of torch, what the interface names, else one
                that the communicator has for itself.
            timeout: seconds; unless given, the communicator's.
            wait: False: return when it is queued.

        Raises, as all operations do:
            UsageError: the arguments make no sense, or it was finalized. Nothing was queued.
            CollectiveTimeout: it did not end in time; ``peers`` are to blame, if known.
            CollectiveAborted: it was aborted, while this waited or before.
            CollectiveError: it failed otherwise.
            GpuForked: this process was forked from the one that made the communicator.
        """
        self._do(self._calling("all_reduce").all_reduce(tensor, op, out), **how)

    def broadcast(self, tensor: Any, root: int = 0, **how: Any) -> None:
        """All ranks get what rank ``root`` has, in place."""
        self._do(self._calling("broadcast").broadcast(tensor, root), **how)

    def reduce(
        self, tensor: Any, root: int = 0, op: Reduction = "sum", *, out: Any = None, **how: Any
    ) -> None:
        """Reduce over all ranks; rank ``root`` gets the result, in ``out`` or in place."""
        self._do(self._calling("reduce").reduce(tensor, root, op, out), **how)

    def all_gather(self, tensor: Any, out: Any, **how: Any) -> None:
        """Each rank gets what all have, in the order of ranks; ``out`` has room for it."""
        self._do(self._calling("all_gather").all_gather(tensor, out), **how)

    def reduce_scatter(self, tensor: Any, out: Any, op: Reduction = "sum", **how: Any) -> None:
        """Reduce over all ranks; each gets its share, in the order of ranks, in ``out``."""
        self._do(self._calling("reduce_scatter").reduce_scatter(tensor, out, op), **how)

    def send(self, tensor: Any, to: int, **how: Any) -> None:
        """To a rank, which receives as many bytes."""
        self._do(self._calling("send").send(tensor, to), **how)

    def recv(self, tensor: Any, source: int, **how: Any) -> None:
        """Into ``tensor``, from a rank, which sends as many bytes."""
        self._do(self._calling("recv").recv(tensor, source), **how)

    @contextlib.contextmanager
    def group(
        self, *, stream: Any = None, timeout: float | None = None, wait: bool = True
    ) -> Iterator[None]:
        """Operations of this thread within it go out as one, at its end; so none waits for another.

        If anything is raised within it, nothing is queued::

            with communicator.group():
                communicator.send(mine, right)
                communicator.recv(theirs, left)
        """
        if getattr(self._local, "group", None) is not None:
            raise UsageError("groups are not nested")
        self._check_usable("group")
        calls: list[Call] = []
        self._local.group = calls
        try:
            yield
        finally:
            self._local.group = None
        if calls:
            self._run(calls, stream, timeout, wait)

    def wait(self, timeout: float | None = None) -> None:
        """Until all ranks have joined, and all that was queued with ``wait=False`` has ended."""
        self._check_usable("wait")
        self._wait_all(Deadline(self.timeout if timeout is None else seconds_of(timeout)))

    def _wait_all(self, deadline: Deadline) -> None:
        self._wait_joined(deadline)
        for pending in self._pending.lasts:
            self._finish(pending, deadline)

    # ------------------------------------------------------------------ its state

    @property
    def ready(self) -> bool:
        """All ranks have joined, and it was neither finalized, aborted nor revoked.

        Raises:
            CollectiveTimeout, CollectiveError: they cannot join. It was aborted.
        """
        if not self._joined and not self._how and not self._forked:
            if self._deadline.over:
                self._fail(self._joining, seconds=self._deadline.seconds)
            self._has_joined()
        return self._joined and not self._how and not self._forked

    @property
    def operation(self) -> Operation | None:
        """The oldest that has not ended, as far as known here; None: there is none."""
        if self._how:
            return None
        pending = self._pending.oldest
        return pending.operation if pending else None if self._joined else self._joining

    def async_error(self) -> Exception | None:
        """What has gone wrong meanwhile, as an operation would raise it; None: nothing.

        Asks the library, and returns at once. It does not abort.
        """
        operation = self.operation or Operation("", self._collectives, time.time())
        try:
            state = self._state(operation.name)
        except (GpuError, UsageError) as error:
            return error
        if state in (READY, IN_PROGRESS):
            return None
        verdict = self._judge(operation, READY)
        return failure_of(self, operation, verdict, code=state, said=self._last_words())

    def __repr__(self) -> str:
        state = self._how or ("ready" if self._joined else "joining")
        return f"<Communicator {self.name!r}: rank {self.rank} of {self.size}, {state}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError("a communicator does not travel by pickle: its CommunicatorId does")

    # ------------------------------------------------------------------ its end

    def finalize(self, timeout: float | None = None) -> None:
        """Wait for what is queued, and give it back. Once it has ended, does nothing.

        Raises:
            CollectiveTimeout, CollectiveError: as operations do; then it was aborted. Or the
                library does not return it: then it is not to be used any more all the same.
        """
        deadline = Deadline(self.timeout if timeout is None else seconds_of(timeout))
        if self._how == "revoked":
            self.abort("it was revoked")
        if self._how:
            return
        try:
            self._give_back(deadline)
        except UsageError:
            if self._how != "finalized":  # by another thread, while this one waited
                raise

    def _give_back(self, deadline: Deadline) -> None:
        self._check_usable("finalize")
        self._wait_all(deadline)
        operation = Operation("finalize", self._collectives, time.time())
        with self._turn(operation.name, deadline):
            self._slot.begin(operation.sequence, "finalize")
            if self._library.has("ccl_finalize"):
                self._make_calls(
                    operation, deadline, lambda comm: self._library.call("sm_ccl_finalize", comm)
                )
            with self._lock:
                if self._how:
                    return
                self._how = "finalized"
            answer = self._lane.start(lambda: self._handle.end("sm_ccl_destroy"))
            while not answer.there() and not deadline.over:
                deadline.pause()
            self._closed()
            if not answer.there():
                raise failure_of(self, operation, Verdict(), seconds=deadline.seconds)
            answer.check()

    def abort(self, reason: str = "") -> None:
        """End it without waiting for anybody, from any thread. Once it has ended, does nothing.

        Operations that wait are freed, and raise CollectiveAborted with the reason; then nothing
        uses their tensors any more.
        """
        if not self._forked:
            self._abort(reason or "abort() was called", None)

    def revoke(self, reason: str = "") -> None:
        """End what is under way and allow no more, but keep the communicator for ``shrink``.

        Operations that wait raise CollectiveAborted. Other ranks are not told.

        Raises:
            GpuUnsupported: the library cannot.
        """
        self._check_usable("revoke")
        unsupported(self._library, "ccl_revoke")
        self._revoke(reason or "revoke() was called", None)

    def __enter__(self) -> Communicator:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: object) -> None:
        if kind is None:
            self.finalize()
        else:
            self.abort(f"{kind.__name__} was raised")

    # ------------------------------------------------------------------ others made of it

    def split(self, color: int | None, key: int | None = None) -> Communicator | None:
        """A communicator of the ranks with the same color; all ranks call it.

        Args:
            color: from 0 on; None: this rank takes part, and gets None.
            key: ranks are in order of it, then of their rank here; unless given, of that only.

        Raises:
            UsageError, GpuUnsupported, CollectiveError: as operations and joining do.
        """
        return regroup.split(self, color, key)

    def shrink(self, without: Iterable[int]) -> Communicator:
        """A communicator without some ranks; only the others call it, and all of them.

        Of one that failed: see ``on_failure``, ``revoke``. This one is aborted afterwards then.

        Raises:
            UsageError, GpuUnsupported, CollectiveError: as operations and joining do.
        """
        return regroup.shrink(self, without)

    def growth_id(self) -> CommunicatorId:
        """What one rank makes, so that all ranks can ``grow`` and new ones ``join`` by it.

        Raises:
            GpuUnsupported: the library cannot.
        """
        return regroup.growth_id(self)

    def grow(self, id: CommunicatorId, size: int, *, peers: Iterable[Peer] = ()) -> Communicator:
        """A communicator of ``size`` ranks: these, and new ones behind, which ``join``.

        Args:
            id: of ``growth_id`` of one rank.
            peers: the new ones.

        Raises:
            UsageError, GpuUnsupported, CollectiveError: as operations and joining do.
        """
        return regroup.grow(self, id, size, peers)

    @classmethod
    def join(
        cls,
        id: CommunicatorId,
        rank: int,
        size: int,
        *,
        device: int = 0,
        peers: Iterable[Peer] = (),
        dead: Dead | None = None,
        timeout: float = TIMEOUT_S,
        on_failure: OnFailure = "abort",
    ) -> Communicator:
        """Be a new rank of a communicator that grows. Arguments and errors: as of the class."""
        _check_id(id)
        made = cls.__new__(cls)
        made._set_up(
            *(id.name, id.key, rank, size, device_at(device).index, peers_by_rank(peers)),
            dead=dead,
            timeout=timeout,
            on_failure=on_failure,
        )
        unsupported(made._library, "ccl_grow")
        arguments = (0, size, id.data, rank, made.device)
        made._start(lambda pointer: made._library.call("sm_ccl_grow", *arguments, pointer))
        made.wait()
        return made


def _check_id(id: Any) -> None:
    if not isinstance(id, CommunicatorId):
        raise UsageError(f"a CommunicatorId is needed, not {id!r}")

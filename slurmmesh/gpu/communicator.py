"""Collectives between processes: a rank's communicator, whose operations end, or fail in time."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

from slurmmesh.errors import UsageError
from slurmmesh.gpu import live, regroup
from slurmmesh.gpu.blame import Dead
from slurmmesh.gpu.calls import Call, Reduction
from slurmmesh.gpu.device import device_at
from slurmmesh.gpu.engine import Engine, Make, OnFailure
from slurmmesh.gpu.failure import unsupported
from slurmmesh.gpu.identity import CommunicatorId
from slurmmesh.gpu.library import load
from slurmmesh.gpu.live import Operation
from slurmmesh.gpu.membership import Membership
from slurmmesh.gpu.peers import Peer, peers_by_rank
from slurmmesh.gpu.waiting import Deadline, seconds_of

TIMEOUT_S = 600.0


class Communicator:
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
        membership = _membership(id, rank, size, device, peers, dead)

        def make(pointer: Any) -> None:
            library = load()
            blocks = int(not library.has("ccl_init_config"))
            arguments = (id.data, rank, size, membership.device, blocks)
            library.call("sm_ccl_init", pointer, *arguments)

        self._begin(membership, make, timeout=timeout, on_failure=on_failure, blocking=blocking)

    def _begin(
        self,
        membership: Membership,
        make: Make,
        *,
        timeout: float,
        on_failure: OnFailure,
        blocking: bool = True,
        parent: Engine | None = None,
    ) -> Communicator:
        """Make the engine of it, and join."""
        self._engine = engine = Engine(
            self, membership, timeout=timeout, on_failure=on_failure, parent=parent
        )
        self._local = threading.local()  # the group that a thread is in
        live.add(self, engine)
        with engine.ended_if_amid("init"):
            engine.start(make)
            if blocking:
                engine.wait(Deadline(engine.timeout))
        return self

    # ------------------------------------------------------------------ what it is

    @property
    def name(self) -> str:
        return self._engine.membership.name

    @property
    def rank(self) -> int:
        return self._engine.membership.rank

    @property
    def size(self) -> int:
        return self._engine.membership.size

    @property
    def device(self) -> int:
        return self._engine.membership.device

    @property
    def peers(self) -> dict[int, Peer]:
        return self._engine.membership.peers

    @property
    def timeout(self) -> float:
        return self._engine.timeout

    @timeout.setter
    def timeout(self, seconds: float) -> None:
        self._engine.timeout = seconds_of(seconds)

    @property
    def emulated(self) -> bool:
        """The library is slurmmesh's emulator: nothing done with it was done by a GPU."""
        return self._engine.library.emulated

    @property
    def library_path(self) -> str:
        """Of RCCL or NCCL."""
        return self._engine.library.path("ccl")

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
        self._do(self._engine.calling("all_reduce").all_reduce(tensor, op, out), **how)

    def broadcast(self, tensor: Any, root: int = 0, **how: Any) -> None:
        """All ranks get what rank ``root`` has, in place."""
        self._do(self._engine.calling("broadcast").broadcast(tensor, root), **how)

    def reduce(
        self, tensor: Any, root: int = 0, op: Reduction = "sum", *, out: Any = None, **how: Any
    ) -> None:
        """Reduce over all ranks; rank ``root`` gets the result, in ``out`` or in place."""
        self._do(self._engine.calling("reduce").reduce(tensor, root, op, out), **how)

    def all_gather(self, tensor: Any, out: Any, **how: Any) -> None:
        """Each rank gets what all have, in the order of ranks; ``out`` has room for it."""
        self._do(self._engine.calling("all_gather").all_gather(tensor, out), **how)

    def reduce_scatter(self, tensor: Any, out: Any, op: Reduction = "sum", **how: Any) -> None:
        """Reduce over all ranks; each gets its share, in the order of ranks, in ``out``."""
        self._do(self._engine.calling("reduce_scatter").reduce_scatter(tensor, out, op), **how)

    def send(self, tensor: Any, to: int, **how: Any) -> None:
        """To a rank, which receives as many bytes."""
        self._do(self._engine.calling("send").send(tensor, to), **how)

    def recv(self, tensor: Any, source: int, **how: Any) -> None:
        """Into ``tensor``, from a rank, which sends as many bytes."""
        self._do(self._engine.calling("recv").recv(tensor, source), **how)

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
        self._engine.lifetime.check("group")
        calls: list[Call] = []
        self._local.group = calls
        try:
            yield
        finally:
            self._local.group = None
        if calls:
            self._engine.run(calls, stream, self._deadline(timeout), wait)

    def wait(self, timeout: float | None = None) -> None:
        """Until all ranks have joined, and all that was queued with ``wait=False`` has ended."""
        self._engine.wait(self._deadline(timeout))

    def _do(
        self, call: Call, *, stream: Any = None, timeout: float | None = None, wait: bool = True
    ) -> None:
        group: list[Call] | None = getattr(self._local, "group", None)
        if group is None:
            self._engine.run([call], stream, self._deadline(timeout), wait)
        elif stream is not None or timeout is not None or not wait:
            raise UsageError("stream, timeout and wait are those of the group")
        else:
            group.append(call)

    def _deadline(self, timeout: float | None) -> Deadline:
        return Deadline(self.timeout if timeout is None else seconds_of(timeout))

    # ------------------------------------------------------------------ its state

    @property
    def ready(self) -> bool:
        """All ranks have joined, and it was neither finalized, aborted nor revoked.

        Raises:
            CollectiveTimeout, CollectiveError: they cannot join. It was aborted.
        """
        return self._engine.ready

    @property
    def operation(self) -> Operation | None:
        """The oldest that has not ended, as far as known here; None: there is none."""
        return self._engine.operation

    def async_error(self) -> Exception | None:
        """What has gone wrong meanwhile, as an operation would raise it; None: nothing.

        Asks the library, and returns at once. It does not abort.
        """
        return self._engine.async_error()

    def __repr__(self) -> str:
        engine = self._engine
        state = engine.lifetime.how or ("ready" if engine.joined else "joining")
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
        deadline, lifetime = self._deadline(timeout), self._engine.lifetime
        if lifetime.how == "revoked":
            self.abort("it was revoked")
        if lifetime.how:
            return
        try:
            self._engine.finalize(deadline)
        except UsageError:
            if lifetime.how != "finalized":  # by another thread, while this one waited
                raise

    def abort(self, reason: str = "") -> None:
        """End it without waiting for anybody, from any thread. Once it has ended, does nothing.

        Operations that wait are freed, and raise CollectiveAborted with the reason; then nothing
        uses their tensors any more.
        """
        self._engine.lifetime.abort(reason or "abort() was called")

    def revoke(self, reason: str = "") -> None:
        """End what is under way and allow no more, but keep the communicator for ``shrink``.

        Operations that wait raise CollectiveAborted. Other ranks are not told.

        Raises:
            GpuUnsupported: the library cannot.
        """
        self._engine.lifetime.check("revoke")
        unsupported(self._engine.library, "ccl_revoke")
        self._engine.lifetime.revoke(reason or "revoke() was called", self.timeout)

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
        with regroup.split(self._engine, color, key) as plan:
            return self._made(*plan) if plan else None

    def shrink(self, without: Iterable[int]) -> Communicator:
        """A communicator without some ranks; only the others call it, and all of them.

        Of one that failed: see ``on_failure``, ``revoke``. This one is aborted afterwards then.

        Raises:
            UsageError, GpuUnsupported, CollectiveError: as operations and joining do.
        """
        with regroup.shrink(self._engine, without) as plan:
            return self._made(*plan)

    def growth_id(self) -> CommunicatorId:
        """What one rank makes, so that all ranks can ``grow`` and new ones ``join`` by it.

        Raises:
            GpuUnsupported: the library cannot.
        """
        return regroup.growth_id(self._engine)

    def grow(self, id: CommunicatorId, size: int, *, peers: Iterable[Peer] = ()) -> Communicator:
        """A communicator of ``size`` ranks: these, and new ones behind, which ``join``.

        Args:
            id: of ``growth_id`` of one rank.
            peers: the new ones.

        Raises:
            UsageError, GpuUnsupported, CollectiveError: as operations and joining do.
        """
        with regroup.grow(self._engine, id, size, peers) as plan:
            return self._made(*plan)

    def _made(self, membership: Membership, make: Make) -> Communicator:
        engine, made = self._engine, type(self).__new__(type(self))
        return made._begin(
            *(membership, make),
            timeout=engine.timeout,
            on_failure=engine.on_failure,
            parent=engine,
        )

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
        membership = _membership(id, rank, size, device, peers, dead)
        unsupported(load(), "ccl_grow")

        def make(pointer: Any) -> None:
            load().call("sm_ccl_grow", 0, size, id.data, rank, membership.device, pointer)

        return cls.__new__(cls)._begin(membership, make, timeout=timeout, on_failure=on_failure)


def _membership(
    id: Any, rank: int, size: int, device: int, peers: Iterable[Peer], dead: Dead | None
) -> Membership:
    if not isinstance(id, CommunicatorId):
        raise UsageError(f"a CommunicatorId is needed, not {id!r}")
    index = device_at(device).index
    return Membership(id.name, id.key, rank, size, index, peers_by_rank(peers), dead)

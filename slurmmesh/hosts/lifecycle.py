"""What happens to the ranks of meshes: started, up, gone, started again, given up.

All of it runs in the controller's loop, but for ``start``, ``create``, ``signal`` and ``post``,
which the program's threads use as well.
"""

from __future__ import annotations

import functools
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from slurmmesh.actors.addresses import ProcessId
from slurmmesh.actors.caller import Caller
from slurmmesh.actors.created import Created
from slurmmesh.actors.future import Future
from slurmmesh.actors.runtime import ProcEvent
from slurmmesh.errors import (
    ActorError,
    ExitCause,
    HostLost,
    LinkClosed,
    MeshStopped,
    ProcDied,
    RestartBudgetSpent,
    SupervisionError,
)
from slurmmesh.hosts.casting import Casting, compact
from slurmmesh.hosts.meshes import MeshRecord, RankRecord
from slurmmesh.hosts.messages import (
    ForgetMesh,
    Imports,
    ProcGone,
    ProcStarted,
    SignalProcs,
    SpawnProcs,
)
from slurmmesh.hosts.relay import REQUESTS
from slurmmesh.hosts.roster import HostRecord, Roster
from slurmmesh.supervision import (
    Action,
    Escalate,
    HostDown,
    KillRanks,
    ProcExited,
    ProcUp,
    RestartRanks,
)
from slurmmesh.wire import shm
from slurmmesh.wire.frames import Frame
from slurmmesh.wire.links import Link
from slurmmesh.wire.reactor import Reactor
from slurmmesh.wire.sharing import share

KEEP_S = 10.0
"""So long all is kept of a mesh that is over: news of it may be under way still."""
_MAX_OVER = 4096
"""Of so many meshes, the latest, is kept why they are over."""


class Lifecycle:
    """Carries out what supervision decides, and tells everyone concerned.

    Attributes:
        on_dead: told of ranks that died and are not started again.
        on_ended: told of each process that is gone.
        on_forgotten: told of meshes that are over, when all else of them is forgotten.

    Args:
        lock: guards all records; orders that must arrive in the order of a change to the
            records are posted while it is held.
        emit: writes an event of the job.
    """

    def __init__(
        self,
        reactor: Reactor,
        lock: threading.RLock,
        roster: Roster,
        caller: Caller,
        job: str,
        emit: Callable[..., Any],
    ) -> None:
        self.meshes: dict[int, MeshRecord] = {}
        self._over: dict[int, tuple[str, SupervisionError]] = {}
        self.closing = False
        self._reactor = reactor
        self._lock = lock
        self._roster = roster
        self._hosts = roster.hosts
        self._caller = caller
        self._job = job
        self._book = caller.book
        self._emit = emit
        self.on_dead: Callable[[MeshRecord, Sequence[ExitCause]], Any] = _nothing
        self.on_ended: Callable[[ProcessId], Any] = _nothing
        self.on_forgotten: Callable[[MeshRecord], Any] = _nothing
        self.casting = Casting(
            reactor, lock, roster, self.meshes, caller.book, self.ready, self.why_over
        )

    # -- orders to hosts ------------------------------------------------------------------------

    def start(self, mesh: MeshRecord, ranks: tuple[int, ...], incarnation: int) -> None:
        """Order ranks to be started. With the lock held."""
        hosts = compact([record.host for record in mesh.ranks[:: mesh.per_host]])
        for index, here in mesh.by_host(ranks).items():
            host = self._hosts[index]
            host.meshes.add(mesh.id)
            order = SpawnProcs(
                mesh.id,
                mesh.name,
                mesh.region,
                tuple(here),
                mesh.per_host,
                incarnation,
                self._job,
                mesh.env,
                mesh.preload,
                hosts if self.casting.by_tree else (),
                mesh.bootstrap,
                tuple(mesh.homes or ()) if mesh.expected or mesh.homes is None else None,
                mesh.gpus_per_proc,
                mesh.first_gpu,
            )
            if host.lost is not None or not self._roster.tell(host, order):
                self._reactor.call_soon(self._lose_ranks, mesh, host, incarnation)

    def expect(self, mesh: MeshRecord, home: str = "") -> None:
        """Have hosts import a module for ranks that are started from now on. With the lock held."""
        if mesh.homes is None:
            return
        if home:
            mesh.homes[home] = None
        if not mesh.expected:
            mesh.expected = True
            for index in {record.host for record in mesh.ranks}:
                self._roster.tell(self._hosts[index], Imports(mesh.id, tuple(mesh.homes)))

    def share(self, mesh: MeshRecord, frame: Frame) -> None:
        """Copy large arguments, without a lock, to where the hosts of this machine find them.

        What is posted then, with the lock held, and again for ranks that are restarted, are no
        copies.
        """
        links = (self._hosts[index].link for index in mesh.by_host(tuple(frame.ranks)))
        if any(link is not None and link.passes_fds for link in links):
            share(frame, shm.pool)

    def create(
        self, mesh: MeshRecord, frame: Frame, what: str, ranks: Sequence[int]
    ) -> Future[Any]:
        """Have an actor built on ranks. With the lock held."""
        call, future = self._book.open(
            mesh.id, ranks, lambda _values: True, what, future=Created(what, mesh.id, frame.actor)
        )
        self.post(mesh, replace(frame, call=call, ranks=tuple(ranks)))
        return future

    def signal(
        self, mesh: MeshRecord, ranks: tuple[int, ...], signum: int, ordered: bool = False
    ) -> None:
        """Send a signal; ``ordered``: the end it brings is wanted."""
        with self._lock:
            for index, here in mesh.by_host(ranks).items():
                order = SignalProcs(mesh.id, tuple(here), signum, ordered)
                self._roster.tell(self._hosts[index], order)

    def post(self, mesh: MeshRecord, frame: Frame) -> list[tuple[Link, int]]:
        """Send a frame to the hosts of its ranks, without waiting; what to wait for, if one likes.

        A call to a host that is gone fails.
        """
        if self.casting.by_tree and frame.kind in REQUESTS:
            return self.casting.send(frame)
        posted = []
        for index, here in mesh.by_host(tuple(frame.ranks)).items():
            host = self._hosts[index]
            try:
                link = self._roster.link_to(host)
                posted.append((link, link.post(replace(frame, ranks=here))))
            except LinkClosed:
                lost = host.lost or HostLost(host.name, "its link is closed")
                self._book.fail(frame.call, lost, here)
        return posted

    # -- news from hosts --------------------------------------------------------------------------

    def proc_started(self, host: HostRecord, started: ProcStarted) -> None:
        """A proc has registered."""
        with self._lock:
            mesh = self.meshes.get(started.mesh)
            if mesh is None or started.incarnation != mesh.supervisor.incarnation_of(started.rank):
                return
            record = mesh.ranks[started.rank]
            record.pid = started.pid
            record.incarnation = started.incarnation
            up = ProcUp(started.rank, host.name, started.pid, started.incarnation)
            mesh.supervisor.handle(up, self._reactor.clock())
            ready = [start for start in mesh.starts if start[0] == {started.rank}]
            mesh.starts = [
                (left, done) for ranks, done in mesh.starts if (left := ranks - {started.rank})
            ]
        for _, done in ready:
            done.set_result(True)
        self._emit(
            "proc_up",
            t=started.at,
            mesh=mesh.name,
            rank=started.rank,
            host=host.name,
            pid=started.pid,
            incarnation=started.incarnation,
        )
        self._publish(mesh, started.rank, "up", started.at)

    def proc_gone(self, gone: ProcGone) -> None:
        """A proc has ended."""
        with self._lock:
            mesh = self.meshes.get(gone.mesh)
            if mesh is None:
                return
            record = mesh.ranks[gone.rank]
            if record.gone or gone.incarnation != mesh.supervisor.incarnation_of(gone.rank):
                return
            event = ProcExited(gone.cause, gone.incarnation, gone.expected)
            actions = mesh.supervisor.handle(event, self._reactor.clock())
        self._bury(mesh, gone.cause, gone.expected, gone.at)
        self._act(mesh, actions)
        if mesh.supervisor.spec is None and mesh.over is None and not gone.expected:
            self.on_dead(mesh, (gone.cause,))

    def host_lost(self, host: HostRecord, reason: str) -> None:
        """A host is gone, and with it the ranks that ran there."""
        with self._lock:
            meshes = [self.meshes[mesh] for mesh in host.meshes]
        for mesh in meshes:
            self._lose_ranks(mesh, host)
            # Calls to ranks that were gone before: the host can no longer answer for them.
            here = [rank for rank, record in enumerate(mesh.ranks) if record.host == host.index]
            self._book.fail_ranks(mesh.id, here, mesh.over or HostLost(host.name, reason))
        self.casting.host_lost(host)

    def _lose_ranks(
        self, mesh: MeshRecord, host: HostRecord, incarnation: int | None = None
    ) -> None:
        """Ranks that run on a lost host, or (of this incarnation) were to be started there."""
        at = time.time()
        reason = host.lost.detail if host.lost else "its link is closed"
        with self._lock:
            causes = tuple(
                ExitCause(
                    mesh.name,
                    rank,
                    host.name,
                    record.pid,
                    detail=f"its host is lost: {reason}",
                    kind="host_lost",
                )
                for rank, record in enumerate(mesh.ranks)
                if record.host == host.index
                and not record.gone
                and incarnation in (None, record.incarnation)
            )
            actions = mesh.supervisor.handle(HostDown(causes), self._reactor.clock())
        for cause in causes:
            self._bury(mesh, cause, self.closing, at)
        self._act(mesh, actions)
        if mesh.supervisor.spec is None and mesh.over is None and causes:
            self.on_dead(mesh, causes)

    def _bury(self, mesh: MeshRecord, cause: ExitCause, expected: bool, at: float) -> None:
        """Tell everyone that a rank is gone: who waits for it, the log, subscribers, stops."""
        rank = cause.rank
        with self._lock:
            record = mesh.ranks[rank]
            record.gone = True
            if not expected:
                mesh.deaths.append((self._reactor.clock(), cause))
            ended = [stop for stop in mesh.stops if stop[0] == {rank}]
            mesh.stops = [(waiting - {rank}, done) for waiting, done in mesh.stops]
            mesh.stops = [stop for stop in mesh.stops if stop[0]]
            failed = [start for start in mesh.starts if rank in start[0]]
            mesh.starts = [start for start in mesh.starts if rank not in start[0]]
        # What came down the tree the rank's host answers, behind what the rank itself still said.
        by_tree = () if cause.kind == "host_lost" else self.casting.tree
        error = mesh.over or ProcDied(cause)
        self._caller.lost(mesh.id, rank, error, by_tree)
        record.end.set_result(error)
        for _, starting in failed:
            starting.set_exception(error)
        self._emit(
            "proc_exited",
            t=at,
            mesh=mesh.name,
            rank=rank,
            host=cause.host,
            pid=cause.pid or None,
            signal=cause.signal_name,
            exit_code=cause.exit_code,
            detail=cause.detail,
            stderr=list(cause.stderr_tail),
            expected=expected,
        )
        self._publish(mesh, rank, "exited", at, cause, expected)
        self.forget_if_over(mesh)
        for _, done in ended:
            done.set_result(None)
        self.on_ended(ProcessId(mesh.id, rank, record.incarnation))

    def ready(self, mesh: MeshRecord, ranks: Iterable[int]) -> Future[bool]:
        """See ``Runtime.ready``."""
        future: Future[bool] = Created(f"starting {mesh.name!r}", mesh.id)
        with self._lock:
            dead = [mesh.ranks[rank] for rank in ranks if mesh.ranks[rank].gone]
            waiting = {rank for rank in ranks if not mesh.ranks[rank].pid}
            if mesh.over is not None:
                future.set_exception(mesh.over)
            elif dead:
                future.set_exception(dead[0].end.get(0))
            elif waiting:
                self.expect(mesh)
                mesh.starts.append((waiting, future))
            else:
                future.set_result(True)
        return future

    def end_of(self, mesh: int, rank: int, incarnation: int) -> Any:
        """What those are told who waited for an incarnation of a rank; a future while it runs."""
        with self._lock:
            if mesh not in self.meshes:
                return self.why_over(mesh)
            record = self.meshes[mesh].ranks[rank]
            return record.end if incarnation >= record.incarnation else record.end_before

    def deaths(self, mesh: int, since: float) -> list[ExitCause]:
        """Those of ranks of a mesh since a time of the loop's clock, the latest if many."""
        with self._lock:
            record = self.meshes.get(mesh)
            return [cause for at, cause in record.deaths if at >= since] if record else []

    # -- what is over ------------------------------------------------------------------------------

    def forget_if_over(self, mesh: MeshRecord) -> None:
        """Keep no more of a mesh that is gone than why, here and on its hosts."""
        with self._lock:
            if not mesh.is_gone:
                return
            # Only restarts need these, and arguments may be large.
            mesh.created.clear()
            mesh.stops.clear()
        self._reactor.call_soon(self._reactor.call_later, KEEP_S, lambda: self._forget(mesh))

    def _forget(self, mesh: MeshRecord) -> None:
        with self._lock:
            if self.meshes.pop(mesh.id, None) is None:
                return
            assert mesh.over is not None
            self._over[mesh.id] = mesh.name, mesh.over
            if len(self._over) > _MAX_OVER:
                del self._over[next(iter(self._over))]
            for index in {record.host for record in mesh.ranks} | mesh.asked:
                self._hosts[index].meshes.discard(mesh.id)
                self._roster.tell(self._hosts[index], ForgetMesh(mesh.id))
        self._caller.forget(mesh.id)
        self.on_forgotten(mesh)

    def why_over(self, mesh: int) -> SupervisionError:
        """What those are told who call a mesh that is forgotten."""
        _, error = self._over.get(mesh, ("", None))
        return error or MeshStopped("the mesh was stopped, long ago")

    def name_of(self, mesh: int) -> str:
        """The name of a mesh, which may be forgotten."""
        record = self.meshes.get(mesh)
        return record.name if record else self._over.get(mesh, (f"mesh {mesh}",))[0]

    # -- what supervision decided ------------------------------------------------------------------

    def _act(self, mesh: MeshRecord, actions: Iterable[Action]) -> None:
        for action in actions:
            if isinstance(action, KillRanks):
                self.signal(mesh, action.ranks, signal.SIGKILL, ordered=True)
            elif isinstance(action, RestartRanks):
                self._restart(mesh, action)
            elif isinstance(action, Escalate):
                self._give_up(mesh, action)

    def _give_up(self, mesh: MeshRecord, action: Escalate) -> None:
        ranks = list(action.ranks)
        self._emit("ranks_given_up", mesh=mesh.name, ranks=ranks, reason=action.reason)
        last = action.causes[-1]
        lost = last.kind == "host_lost"
        if len(action.ranks) == len(mesh.ranks):
            error = HostLost(last.host, last.detail) if lost else RestartBudgetSpent(action.reason)
            error.about = (mesh.id, -1, 0)
            with self._lock:
                mesh.over = mesh.over or error
            self._book.fail_mesh(mesh.id, mesh.over)
        for cause in action.causes if lost else [last]:
            self._publish(mesh, cause.rank, "given_up", time.time(), cause)
        self.on_dead(mesh, action.causes)
        self.forget_if_over(mesh)

    def _restart(self, mesh: MeshRecord, action: RestartRanks) -> None:
        """Start ranks again and build their actors again, under the same references."""
        again = set(action.ranks)
        with self._lock:
            if mesh.over is not None:
                return  # stopped since this was decided
            for rank in action.ranks:
                before = mesh.ranks[rank]
                end = before.end.get(0) if before.end.done() else None
                mesh.ranks[rank] = RankRecord(before.host, 0, action.incarnation, end_before=end)
            self.start(mesh, action.ranks, action.incarnation)
            built = [
                (rank, self.create(mesh, frame, what, [rank]))
                for frame, what in mesh.created
                for rank in frame.ranks
                if rank in again
            ]
        missing = len(built)
        failed: set[int] = set()
        spec = mesh.supervisor.spec
        action_is_for_one = spec is not None and spec.strategy == "one_for_one"

        def one_built(rank: int, future: Future[Any]) -> None:
            nonlocal missing
            missing -= 1
            error = future.peek()
            if error is not None and rank not in failed:
                failed.add(rank)
                if isinstance(error, ActorError):
                    # A constructor raised. Half a rank is of no use: it counts as one more death.
                    self.signal(mesh, (rank,), signal.SIGKILL)
            if missing == 0 and (not failed or action_is_for_one):
                self._restarted(mesh, [rank for rank in action.ranks if rank not in failed])

        if not built:
            self._restarted(mesh, action.ranks)
        for rank, future in built:
            future.add_done_callback(functools.partial(one_built, rank))

    def _restarted(self, mesh: MeshRecord, ranks: Iterable[int]) -> None:
        for rank in ranks:
            incarnation = mesh.ranks[rank].incarnation
            self._emit("proc_restarted", mesh=mesh.name, rank=rank, incarnation=incarnation)
            self._publish(mesh, rank, "restarted", time.time())

    def _publish(
        self,
        mesh: MeshRecord,
        rank: int,
        kind: str,
        at: float,
        cause: ExitCause | None = None,
        expected: bool = False,
    ) -> None:
        record = mesh.ranks[rank]
        event = ProcEvent(
            kind=kind,
            mesh=mesh.name,
            rank=rank,
            host=self._hosts[record.host].name,
            pid=cause.pid if cause else record.pid,
            incarnation=record.incarnation,
            at=at,
            seen_at=time.time(),
            cause=cause,
            expected=expected,
        )
        for callback in list(mesh.subscribers):
            self._reactor.guard(callback, event)


def _nothing(*_args: Any) -> None:
    """What is told to nobody."""

"""The controller: the links to all hosts, the book of meshes, and what happens on a death."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurmmesh import telemetry
from slurmmesh.actors.calls import CallBook
from slurmmesh.actors.future import Future
from slurmmesh.actors.mesh import ProcEvent, ProcMesh
from slurmmesh.errors import (
    ExitCause,
    HostLost,
    LinkClosed,
    MeshStopped,
    ProcDied,
    RestartBudgetSpent,
)
from slurmmesh.hosts.meshes import MeshRecord, RankRecord
from slurmmesh.hosts.messages import (
    ProcGone,
    ProcStarted,
    SignalProcs,
    SpawnProcs,
    StopProcs,
)
from slurmmesh.hosts.roster import HostRecord, Roster
from slurmmesh.shape import Region
from slurmmesh.supervision import (
    Action,
    CannotStart,
    Escalate,
    HostDown,
    KillRanks,
    MeshSupervisor,
    ProcExited,
    ProcUp,
    RestartRanks,
    Supervision,
)
from slurmmesh.wire.codec import loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.identity import JobAuthority
from slurmmesh.wire.reactor import Reactor


class Controller:
    """Runs its loop in a thread of its own; the user's threads call in.

    Locks: ``_lock`` guards the books. Frames that must arrive in the order of a change to the
    books (spawn, create, restart) are sent while it is held, and then never wait for the
    socket; calls are sent without it.

    Args:
        job_id: goes into the certificates.
        job_folder: for logs, identity and the event log; None for a program outside of a job.
    """

    def __init__(self, job_id: str, job_folder: Path | None) -> None:
        self._book = CallBook()
        self._meshes: dict[int, MeshRecord] = {}
        self._mesh_ids = itertools.count(1)
        self._lock = threading.RLock()
        self._closing = False
        self._events = None
        if job_folder is not None:
            (job_folder / "logs").mkdir(mode=0o700, exist_ok=True)
            self._events = telemetry.EventLog(job_folder / "events.jsonl")
            telemetry.set_sink(self._events.write)
        self._reactor = Reactor()
        self.roster = Roster(
            self._reactor,
            self._lock,
            JobAuthority(job_id),
            job_folder,
            on_frame=self._on_frame,
            on_lost=self._on_host_lost,
        )
        self.hosts = self.roster.hosts
        self._thread = threading.Thread(
            target=self._reactor.run, name="slurmmesh-links", daemon=True
        )
        self._thread.start()

    # -- spawning -----------------------------------------------------------------------------

    def spawn_procs(
        self,
        hosts: Sequence[int],
        region: Region,
        name: str,
        *,
        env: dict[str, str],
        preload: tuple[str, ...],
        supervise: Supervision | None,
    ) -> ProcMesh:
        """Start a proc for each place of ``region``, evenly over ``hosts`` in order."""
        total = len(region)
        per_host = total // len(hosts)
        places = [RankRecord(hosts[rank // per_host]) for rank in range(total)]
        with self._lock:
            if self._closing:
                raise MeshStopped("the job is being stopped")
            mesh = MeshRecord(
                next(self._mesh_ids),
                name,
                region,
                places,
                per_host,
                env,
                preload,
                MeshSupervisor(supervise, name, total),
            )
            self._meshes[mesh.id] = mesh
            telemetry.emit(
                "procs_spawned",
                mesh=name,
                ranks=list(range(total)),
                hosts=[self.hosts[place.host].name for place in places],
            )
            self._start_ranks(mesh, tuple(range(total)), 0)
        return ProcMesh(self, mesh.id, name, region, itertools.count(1))

    def _start_ranks(self, mesh: MeshRecord, ranks: tuple[int, ...], incarnation: int) -> None:
        """Send the order to start ranks. With the lock held."""
        for index, here in mesh.by_host(ranks).items():
            host = self.hosts[index]
            host.meshes.add(mesh.id)
            order = SpawnProcs(
                mesh.id,
                mesh.name,
                mesh.region,
                tuple(here),
                mesh.per_host,
                incarnation,
                mesh.env,
                mesh.preload,
            )
            if host.lost is not None or not self.roster.tell(host, order):
                self._reactor.call_soon(self._cannot_start, mesh, host, tuple(here))

    # -- what meshes ask for (actors.mesh.Runtime) ---------------------------------------------

    def call(self, frame: Frame, finish: Callable[[list[Any]], Any], what: str) -> Future[Any]:
        """See ``Runtime.call``."""
        mesh = self._meshes[frame.mesh]
        call, future = self._book.open(frame.mesh, frame.ranks, finish, what)
        frame.call = call
        if mesh.over is not None:
            self._book.fail(call, mesh.over)
        else:
            self._send(mesh, frame)
        return future

    def cast(self, frame: Frame) -> None:
        """See ``Runtime.cast``."""
        mesh = self._meshes[frame.mesh]
        if mesh.over is not None:
            raise mesh.over
        self._send(mesh, frame)

    def create(self, frame: Frame, what: str) -> Future[Any]:
        """See ``Runtime.create``."""
        mesh = self._meshes[frame.mesh]
        with self._lock:
            if mesh.over is not None:
                raise mesh.over
            mesh.created.append((frame, what))
            return self._create(mesh, frame, what, frame.ranks)

    def _create(
        self, mesh: MeshRecord, frame: Frame, what: str, ranks: Sequence[int]
    ) -> Future[Any]:
        call, future = self._book.open(mesh.id, ranks, lambda _values: None, what)
        self._send(mesh, replace(frame, call=call, ranks=tuple(ranks)), wait=False)
        return future

    def stop_procs(self, mesh: int, ranks: Sequence[int], grace_s: float) -> Future[None]:
        """See ``Runtime.stop_procs``."""
        future: Future[None] = Future("stopping")
        with self._lock:
            record = self._meshes[mesh]
            waiting = {rank for rank in ranks if not record.ranks[rank].gone}
            if len(ranks) == len(record.ranks) and record.over is None:
                record.over = MeshStopped(f"the mesh {record.name!r} was stopped")
                record.supervisor.stopping()
            if not waiting:
                future.set_result(None)
                return future
            record.stops.append((waiting, future))
            for index, here in record.by_host(tuple(sorted(waiting))).items():
                self.roster.tell(self.hosts[index], StopProcs(mesh, tuple(here), grace_s))
        return future

    def signal_procs(self, mesh: int, ranks: Sequence[int], signum: int) -> None:
        """See ``Runtime.signal_procs``."""
        self._signal(self._meshes[mesh], tuple(ranks), signum)

    def _signal(
        self, mesh: MeshRecord, ranks: tuple[int, ...], signum: int, ordered: bool = False
    ) -> None:
        with self._lock:
            for index, here in mesh.by_host(ranks).items():
                order = SignalProcs(mesh.id, tuple(here), signum, ordered)
                self.roster.tell(self.hosts[index], order)

    def subscribe(self, mesh: int, callback: Callable[[ProcEvent], Any]) -> None:
        """See ``Runtime.subscribe``."""
        with self._lock:
            self._meshes[mesh].subscribers.append(callback)

    def hosts_of(self, mesh: int, ranks: Sequence[int]) -> list[str]:
        """See ``Runtime.hosts_of``."""
        record = self._meshes[mesh]
        return [self.hosts[record.ranks[rank].host].name for rank in ranks]

    # -- sending ------------------------------------------------------------------------------

    def _send(self, mesh: MeshRecord, frame: Frame, wait: bool = True) -> None:
        for index, here in mesh.by_host(tuple(frame.ranks)).items():
            host = self.hosts[index]
            try:
                self.roster.send(host, replace(frame, ranks=here), wait=wait)
            except LinkClosed:
                lost = host.lost or HostLost(host.name, "its link is closed")
                self._book.fail(frame.call, lost)

    # -- in the reactor's thread ---------------------------------------------------------------

    def _on_frame(self, host: HostRecord, frame: Frame) -> None:
        if frame.kind in (Kind.RESULT, Kind.ERROR):
            self._book.answer(frame)
        elif frame.kind is Kind.EVENT:
            if self._events is not None:
                self._events.write(loads(frame.body))
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body, frame.buffers)
            if isinstance(message, ProcStarted):
                self._proc_started(host, message)
            elif isinstance(message, ProcGone):
                self._proc_gone(message)

    def _on_host_lost(self, host: HostRecord, reason: str) -> None:
        with self._lock:
            meshes = [self._meshes[mesh] for mesh in host.meshes]
        for mesh in meshes:
            self._lose_ranks(mesh, host, reason)

    def _lose_ranks(self, mesh: MeshRecord, host: HostRecord, reason: str) -> None:
        """The ranks of a mesh that ran on a lost host are gone with it."""
        at = time.time()
        with self._lock:
            ranks = [
                rank
                for rank, record in enumerate(mesh.ranks)
                if record.host == host.index and not record.gone
            ]
            down = HostDown(host.name, tuple(ranks), at, reason)
            actions = mesh.supervisor.handle(down, self._reactor.clock())
        for rank in ranks:
            pid = mesh.ranks[rank].pid
            detail = f"its host is lost: {reason}"
            cause = ExitCause(mesh.name, rank, host.name, pid, detail=detail)
            self._bury(mesh, rank, cause, self._closing, at)
        self._act(mesh, actions)

    def _cannot_start(self, mesh: MeshRecord, host: HostRecord, ranks: tuple[int, ...]) -> None:
        """The order to start ranks could not be given: their host is gone."""
        detail = f"host {host.name} is lost: {host.lost.detail if host.lost else 'link closed'}"
        with self._lock:
            event = CannotStart(ranks, detail)
            actions = mesh.supervisor.handle(event, self._reactor.clock())
        for rank in ranks:
            cause = ExitCause(mesh.name, rank, host.name, 0, detail=detail)
            self._bury(mesh, rank, cause, self._closing, time.time())
        self._act(mesh, actions)

    def _proc_started(self, host: HostRecord, started: ProcStarted) -> None:
        with self._lock:
            mesh = self._meshes[started.mesh]
            record = mesh.ranks[started.rank]
            record.pid = started.pid
            record.incarnation = started.incarnation
            up = ProcUp(started.rank, host.name, started.pid, started.incarnation)
            mesh.supervisor.handle(up, self._reactor.clock())
        telemetry.emit(
            "proc_up",
            t=started.at,
            mesh=mesh.name,
            rank=started.rank,
            host=host.name,
            pid=started.pid,
            incarnation=started.incarnation,
        )
        self._publish(mesh, started.rank, "up", started.at)

    def _proc_gone(self, gone: ProcGone) -> None:
        with self._lock:
            mesh = self._meshes[gone.mesh]
            record = mesh.ranks[gone.rank]
            if record.gone or gone.incarnation != mesh.supervisor.incarnation_of(gone.rank):
                return
            event = ProcExited(gone.cause, gone.at, gone.incarnation, gone.expected)
            actions = mesh.supervisor.handle(event, self._reactor.clock())
        self._bury(mesh, gone.rank, gone.cause, gone.expected, gone.at)
        self._act(mesh, actions)

    def _bury(
        self, mesh: MeshRecord, rank: int, cause: ExitCause, expected: bool, at: float
    ) -> None:
        """Tell everyone that a rank is gone: who waits for it, the log, subscribers, stops."""
        with self._lock:
            mesh.ranks[rank].gone = True
            stops = [stop for stop in mesh.stops if rank in stop[0]]
        self._book.fail_rank(mesh.id, rank, mesh.over or ProcDied(cause))
        telemetry.emit(
            "proc_exited",
            t=at,
            mesh=mesh.name,
            rank=rank,
            host=cause.host,
            pid=cause.pid,
            signal=cause.signal_name,
            exit_code=cause.exit_code,
            detail=cause.detail,
            stderr=list(cause.stderr_tail),
            expected=expected,
        )
        self._publish(mesh, rank, "exited", at, cause, expected)
        for waiting, future in stops:
            waiting.discard(rank)
            if not waiting:
                mesh.stops.remove((waiting, future))
                future.set_result(None)

    def _act(self, mesh: MeshRecord, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, KillRanks):
                self._signal(mesh, action.ranks, signal.SIGKILL, ordered=True)
            elif isinstance(action, RestartRanks):
                self._restart(mesh, action)
            elif isinstance(action, Escalate):
                self._give_up(mesh, action)

    def _give_up(self, mesh: MeshRecord, action: Escalate) -> None:
        with self._lock:
            mesh.over = RestartBudgetSpent(action.reason)
        self._book.fail_mesh(mesh.id, mesh.over)
        last = action.causes[-1] if action.causes else None
        self._publish(mesh, last.rank if last else 0, "given_up", time.time(), last)

    def _restart(self, mesh: MeshRecord, action: RestartRanks) -> None:
        """Start ranks again and build their actors again, under the same references."""
        with self._lock:
            for rank in action.ranks:
                mesh.ranks[rank] = RankRecord(mesh.ranks[rank].host, 0, action.incarnation)
            self._start_ranks(mesh, action.ranks, action.incarnation)
            again = set(action.ranks)
            built = [
                self._create(mesh, frame, what, [rank for rank in frame.ranks if rank in again])
                for frame, what in mesh.created
                if again.intersection(frame.ranks)
            ]
        missing = len(built)

        def one_built(future: Future[Any]) -> None:
            nonlocal missing
            missing -= 1
            if missing == 0 and all(each.exception(0) is None for each in built):
                self._restarted(mesh, action)

        if not built:
            self._restarted(mesh, action)
        for future in built:
            future.add_done_callback(one_built)

    def _restarted(self, mesh: MeshRecord, action: RestartRanks) -> None:
        for rank in action.ranks:
            telemetry.emit(
                "proc_restarted", mesh=mesh.name, rank=rank, incarnation=action.incarnation
            )
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
            host=self.hosts[record.host].name,
            pid=cause.pid if cause else record.pid,
            incarnation=record.incarnation,
            at=at,
            seen_at=time.time(),
            cause=cause,
            expected=expected,
        )
        for callback in list(mesh.subscribers):
            callback(event)

    # -- the end ------------------------------------------------------------------------------

    def close(self, grace_s: float = 5.0) -> None:
        """End all procs and hosts in order, then by force; leaves nothing running."""
        with self._lock:
            if self._closing:
                return
            self._closing = True
            for mesh in self._meshes.values():
                mesh.supervisor.stopping()
                mesh.over = mesh.over or MeshStopped("the job was stopped")
        self.roster.close(grace_s)
        for mesh in self._meshes.values():
            self._book.fail_mesh(mesh.id, mesh.over or MeshStopped("the job was stopped"))
        self._reactor.stop()
        self._thread.join()
        if self._events is not None:
            telemetry.set_sink(None)
            self._events.close()

"""The controller: what the user's program asks of its job, from any of its threads."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurmmesh import telemetry
from slurmmesh.actors.calls import CallBook
from slurmmesh.actors.direct import Place, not_loaded
from slurmmesh.actors.future import Future
from slurmmesh.actors.mesh import ProcEvent, ProcMesh
from slurmmesh.errors import LinkClosed, MeshStopped, SupervisionError
from slurmmesh.hosts.directs import Directs
from slurmmesh.hosts.lifecycle import Lifecycle
from slurmmesh.hosts.meshes import MeshRecord, RankRecord
from slurmmesh.hosts.messages import Connect, Connected, ProcGone, ProcStarted, StopProcs
from slurmmesh.hosts.roster import HostRecord, Roster
from slurmmesh.shape import Region
from slurmmesh.supervision import MeshSupervisor, Supervision
from slurmmesh.wire.codec import loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.identity import JobAuthority
from slurmmesh.wire.reactor import Reactor, in_loop_thread


class Controller:
    """Runs its loop in a thread of its own; the user's threads call in.

    Locks: ``_lock`` guards the books. Frames that must arrive in the order of a change to the
    books (spawn, create, restart) are sent while it is held, and then never wait for the
    socket; calls are sent without it.

    It belongs to the process that made it: in a forked child nothing of it works, and its end
    ends nothing.

    Args:
        job_id: goes into the certificates.
        job_folder: for logs, identity and the event log; None for a program outside of a job.
    """

    def __init__(self, job_id: str, job_folder: Path | None) -> None:
        authority = JobAuthority(job_id)
        self._pid = os.getpid()
        self._mesh_ids = itertools.count(1)
        self._lock = threading.RLock()
        self._book = CallBook(self._lock)
        self._close_lock = threading.RLock()
        self.closed = False
        self._events: telemetry.EventLog | None = None
        if job_folder is not None:
            job_folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            (job_folder / "logs").mkdir(mode=0o700, exist_ok=True)
            self._events = telemetry.EventLog(
                job_folder / "events.jsonl", may_wait=lambda: not in_loop_thread()
            )
            self._outer_sink = telemetry.set_sink(self._events.write)
        self._reactor = Reactor()
        self.roster = Roster(
            self._reactor,
            self._lock,
            authority,
            job_folder,
            on_frame=self._on_frame,
            on_lost=self._on_host_lost,
            emit=self.emit,
        )
        self.hosts = self.roster.hosts
        self._directs = Directs(self._lock, self._ask_for_link)
        self._life = Lifecycle(
            self._reactor, self._lock, self.roster, self._book, self._directs, self.emit
        )
        self._thread = threading.Thread(
            target=self._reactor.run, name="slurmmesh-links", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def emit(self, kind: str, **fields: Any) -> None:
        """An event of this job; a program may have several."""
        if self._events is not None:
            self._events.write(telemetry.make_event(kind, **fields))

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
        self._check_process()
        total = len(region)
        per_host = total // len(hosts)
        places = [RankRecord(hosts[rank // per_host]) for rank in range(total)]
        with self._lock:
            if self._life.closing:
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
            self._life.meshes[mesh.id] = mesh
            self.emit(
                "procs_spawned",
                mesh=name,
                ranks=list(range(total)),
                hosts=[self.hosts[place.host].name for place in places],
                sizes=dict(region.extent),
                supervised=supervise is not None,
            )
            self._life.start(mesh, tuple(range(total)), 0)
        return ProcMesh(self, mesh.id, name, region, itertools.count(1))

    # -- what meshes ask for (actors.mesh.Runtime) ---------------------------------------------

    def call(self, frame: Frame, finish: Callable[[list[Any]], Any], what: str) -> Future[Any]:
        """See ``Runtime.call``."""
        mesh = self._mesh(frame.mesh)
        direct = self._directs.link_to(mesh, frame.ranks)
        if direct is not None:
            future: Future[Any] = Future(what, direct.driver)
            with contextlib.suppress(LinkClosed):  # its rank is gone: the long way tells why
                self._directs.send(direct, frame, functools.partial(_settle, future, finish))
                return future
        placed, apart = self._directs.divide(mesh, frame.ranks)
        call, future = self._book.open(frame.mesh, frame.ranks, finish, what, placed)
        # Open first, then look: whoever ends the mesh says so first and then fails what is open.
        if mesh.over is not None:
            self._book.fail(call, mesh.over, frame.ranks)
            return future
        try:
            for rank, link in apart.items():
                self._directs.send(link, frame, functools.partial(self._part, call, rank))
            self._send(mesh, frame, call, apart)
        except BaseException as error:  # an interrupt, or a frame over the limits
            self._book.fail(call, error, frame.ranks)
            raise
        return future

    def cast(self, frame: Frame) -> None:
        """See ``Runtime.cast``."""
        mesh = self._mesh(frame.mesh)
        if mesh.over is not None:
            raise mesh.over
        direct = self._directs.link_to(mesh, frame.ranks)
        if direct is not None:
            with contextlib.suppress(LinkClosed):
                self._directs.send(direct, frame, None)
                return
        placed, apart = self._directs.divide(mesh, frame.ranks)
        for link in apart.values():
            with contextlib.suppress(LinkClosed):
                self._directs.send(link, frame, None)
        call = self._book.open_cast(frame.mesh, placed) if placed else 0
        self._send(mesh, frame, call, apart)

    def _part(self, call: int, rank: int, value: Any, error: BaseException | None) -> None:
        """One rank's part of a call to many came over its direct link."""
        if error is None:
            self._book.answer_ranks(call, (rank,), value)
        else:
            self._book.fail(call, error, (rank,))

    def place(self, mesh: int, rank: int) -> Place:
        """See ``Runtime.place``."""
        return self._directs.place(self._mesh(mesh), rank)

    def create(self, frame: Frame, what: str) -> Future[Any]:
        """See ``Runtime.create``."""
        mesh = self._mesh(frame.mesh)
        with self._lock:
            if mesh.over is not None:
                raise mesh.over
            mesh.created.append((frame, what))
            return self._life.create(mesh, frame, what, frame.ranks)

    def stop_procs(self, mesh: int, ranks: Sequence[int], grace_s: float) -> Future[None]:
        """See ``Runtime.stop_procs``."""
        record = self._mesh(mesh)
        future: Future[None] = Future(f"stopping {record.name!r}")
        with self._lock:
            waiting = {rank for rank in ranks if not record.ranks[rank].gone}
            if len(ranks) == len(record.ranks) and record.over is None:
                record.over = MeshStopped(f"the mesh {record.name!r} was stopped")
                record.supervisor.stopping()
            if waiting:
                record.stops.append((waiting, future))
                for index, here in record.by_host(tuple(sorted(waiting))).items():
                    self.roster.tell(self.hosts[index], StopProcs(mesh, tuple(here), grace_s))
        if not waiting:
            future.set_result(None)
        record.forget_if_over()
        return future

    def signal_procs(self, mesh: int, ranks: Sequence[int], signum: int) -> None:
        """See ``Runtime.signal_procs``."""
        self._life.signal(self._mesh(mesh), tuple(ranks), signum)

    def subscribe(self, mesh: int, callback: Callable[[ProcEvent], Any]) -> None:
        """See ``Runtime.subscribe``."""
        record = self._mesh(mesh)
        with self._lock:
            record.subscribers.append(callback)

    def hosts_of(self, mesh: int, ranks: Sequence[int]) -> list[str]:
        """See ``Runtime.hosts_of``."""
        record = self._mesh(mesh)
        return [self.hosts[record.ranks[rank].host].name for rank in ranks]

    def _mesh(self, mesh: int) -> MeshRecord:
        self._check_process()
        return self._life.meshes[mesh]

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise SupervisionError(
                f"this process is a fork of the controller (pid {self._pid}): it cannot use the "
                "controller's meshes; start it with the spawn method, or make it an actor"
            )

    def _send(self, mesh: MeshRecord, frame: Frame, call: int, apart: Collection[int] = ()) -> None:
        """Send a frame by the hosts, but to those ranks that get it another way."""
        ranks = [rank for rank in frame.ranks if rank not in apart] if apart else frame.ranks
        frame = replace(frame, call=call, ranks=ranks)
        # To all first, then wait: the hosts take large payloads side by side.
        for link, position in self._life.post(mesh, frame):
            link.wait_for_room(frame, position)

    def _ask_for_link(self, mesh: MeshRecord, rank: int) -> bool:
        host = self.hosts[mesh.ranks[rank].host]
        if host.link is None or not host.link.passes_fds:
            return False
        return self.roster.tell(host, Connect(mesh.id, rank))

    # -- in the reactor's thread ---------------------------------------------------------------

    def _on_frame(self, host: HostRecord, frame: Frame) -> None:
        if frame.kind in (Kind.RESULT, Kind.ERROR):
            self._book.answer(frame)
        elif frame.kind is Kind.DELIVERED:
            self._book.answer_ranks(frame.call, frame.ranks, None)
        elif frame.kind is Kind.EVENT:
            if self._events is not None:
                self._events.write(json.loads(bytes(frame.body)))
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body, frame.buffers)
            if isinstance(message, ProcStarted):
                self._life.proc_started(host, message)
            elif isinstance(message, ProcGone):
                self._life.proc_gone(message)
            elif isinstance(message, Connected):
                mesh = self._life.meshes[message.mesh]
                self._directs.connected(mesh, message.rank, message.incarnation, frame.fds[0])

    def _on_host_lost(self, host: HostRecord, reason: str) -> None:
        self._life.host_lost(host, reason)

    # -- the end ------------------------------------------------------------------------------

    def expect_end(self) -> None:
        """The job is being ended from outside: what dies from here on is no news.

        For a signal handler: Slurm sends SIGTERM to the job's processes on all nodes at once.
        """
        with self._lock:
            self._life.closing = True
            self.roster.leaving = True
            for mesh in self._life.meshes.values():
                mesh.supervisor.stopping()

    def close(self, grace_s: float = 5.0, exit_code: int | None = None) -> None:
        """End all procs and hosts in order, then by force; leaves nothing running.

        The last event says so, with the program's exit code where that is known.

        A call that comes while another is at it waits for that one; one that comes after an
        interrupted one goes on where that stopped.
        """
        if os.getpid() != self._pid:
            return
        if self._reactor.in_thread:
            raise RuntimeError("an event callback cannot stop the job: it would wait for itself")
        with self._close_lock:
            if self.closed:
                return
            self.expect_end()
            with self._lock:
                for mesh in self._life.meshes.values():
                    mesh.over = mesh.over or MeshStopped("the job was stopped")
            self.roster.close(grace_s)
            for mesh in self._life.meshes.values():
                self._book.fail_mesh(mesh.id, mesh.over or MeshStopped("the job was stopped"))
            self._directs.stop()
            self._reactor.stop()
            self._thread.join()
            self.emit("job_ended", exit_code=exit_code)
            if self._events is not None:
                telemetry.set_sink(self._outer_sink, instead_of=self._events.write)
                self._events.close()
            self.closed = True
        atexit.unregister(self.close)


def _settle(
    future: Future[Any],
    finish: Callable[[list[Any]], Any],
    value: Any,
    error: BaseException | None,
) -> None:
    """Settle the future of a call to one rank."""
    if error is None:
        try:
            value = finish([value])
        except BaseException as raised:  # code of the user's classes
            error = not_loaded(raised)
    if error is None:
        future.set_result(value)
    else:
        future.set_exception(error)

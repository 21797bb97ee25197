"""The controller: what the user's program asks of its job, from any of its threads."""

from __future__ import annotations

import atexit
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from slurmmesh import telemetry
from slurmmesh.actors.addresses import CONTROLLER
from slurmmesh.actors.caller import Caller
from slurmmesh.actors.future import Future
from slurmmesh.actors.hearing import listeners
from slurmmesh.actors.messages import Connected, Door
from slurmmesh.actors.owners import Owner
from slurmmesh.actors.ports import PORTS
from slurmmesh.actors.runtime import register
from slurmmesh.errors import HostLost, LinkClosed, MeshStopped
from slurmmesh.hosts.asks import Asks
from slurmmesh.hosts.failures import Failures
from slurmmesh.hosts.introductions import Introductions
from slurmmesh.hosts.lifecycle import Lifecycle
from slurmmesh.hosts.meshes import MeshRecord
from slurmmesh.hosts.messages import (
    HOSTS,
    LogsStream,
    LogsTaken,
    ProcGone,
    ProcStarted,
)
from slurmmesh.hosts.ownproc import OwnProc
from slurmmesh.hosts.relay import ANSWERS
from slurmmesh.hosts.reloading import reload_on_hosts
from slurmmesh.hosts.roster import HostRecord, Roster
from slurmmesh.hosts.runtime import ProgramRuntime
from slurmmesh.hosts.streams import LogStreams
from slurmmesh.hosts.syncing import SyncedWorkspace, Syncing, SyncRequest
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.dialing import Dialing
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.identity import JobAuthority, client_context, peer_name, same_user
from slurmmesh.wire.listener import wrap
from slurmmesh.wire.reactor import Reactor, in_loop_thread

_OWN_MESH = 1
"""The id of the mesh of the program's own process; those it spawns follow."""


class Controller:
    """Runs its loop in a thread of its own; the user's threads call in.

    Locks: ``_lock`` guards the books. Frames that must arrive in the order of a change to the
    books (spawn, create, restart) are sent while it is held, and then never wait for the
    socket; calls are sent without it.

    It belongs to the process that made it: in a forked child nothing of it works, and its end
    ends nothing.

    Attributes:
        runtime: what meshes of this program need.
        roster, hosts: the hosts, and their records by index.

    Args:
        job_id: goes into the certificates.
        job_folder: for logs, identity and the event log; None for a program outside of a job.
    """

    def __init__(self, job_id: str, job_folder: Path | None) -> None:
        authority = JobAuthority(job_id)
        self._pid = os.getpid()
        self._lock = threading.RLock()
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
        self._driver = Driver(Reactor(), "slurmmesh-calls")
        self._driver.start()
        self._caller = Caller(self._driver, self._lock, self._by_hosts, self._introduce)
        self._book = self._caller.book
        job = secrets.token_hex(8)
        self._life = Lifecycle(self._reactor, self._lock, self.roster, self._caller, job, self.emit)
        self._caller.deaths = self._life.deaths
        self._introductions = Introductions(
            self.roster, self._life.meshes, self._dial, self._reactor.call_soon
        )
        self._streams = LogStreams(
            self._life.name_of,
            lambda host, order: self.roster.tell(self.hosts[host], order),
            lambda host: self.roster.tell(self.hosts[host], LogsTaken()),
            job_folder / "logs" if job_folder else None,
        )
        self._own = OwnProc(
            _OWN_MESH,
            self._reactor,
            job_folder,
            lambda *failure: self._failures.own_actor_failed(_OWN_MESH, *failure),
        )
        self.runtime = ProgramRuntime(
            self,
            job,
            self._lock,
            self.roster,
            self._life,
            self._caller,
            self._own,
            self._streams,
            self.emit,
        )
        self._failures = Failures(
            self._reactor,
            self._lock,
            self._life.meshes,
            self.runtime.children.lives,
            self._tell_actor,
            lambda: self._life.closing,
        )
        self._life.on_dead = self._failures.procs_died
        self._life.on_ended = self.runtime.children.process_ended
        self._life.on_forgotten = self._forgotten
        self._syncing = Syncing(self.ask_hosts)
        self._asks = Asks(
            {
                "new_actor": self.runtime.new_actor,
                "create": self._create_for_proc,
                "stop_procs": self.runtime.stop_procs,
                "signal_procs": self.runtime.signal_procs,
                "stream_logs": self.runtime.stream_logs,
                "hosts_of": self.runtime.hosts_of,
                "introduce": self._introductions.introduce,
                "end_of": self._life.end_of,
                "spawn_procs": self.runtime.spawn_procs,
                "get_or_create": self.runtime.get_or_create,
                "ready": self.runtime.ready,
                "stop_actors": self.runtime.stop_actors,
                "end_owned": self.runtime.end_owned,
                "describe_hosts": self.runtime.describe_hosts,
                "host_of": self.runtime.host_of,
                "actor_failed": self._failures.actor_failed,
            }
        )
        register(self.runtime)
        listeners.append(self._failures.hear)
        self._thread = threading.Thread(
            target=self._reactor.run, name="slurmmesh-links", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def emit(self, kind: str, **fields: Any) -> None:
        """An event of this job; a program may have several."""
        if self._events is not None:
            self._events.write(telemetry.make_event(kind, **fields))

    # -- what host meshes ask for ---------------------------------------------------------------

    def ask_hosts(self, hosts: Sequence[int], message: Any, what: str) -> Future[list[Any]]:
        """Send a message to host agents; the future has their answers, in order."""
        self.runtime.check_process()
        body, buffers = dumps(message)
        call, future = self._book.open(HOSTS, hosts, list, what)
        posted = []
        for index in hosts:
            host = self.hosts[index]
            frame = Frame(Kind.CALL, body, buffers, call, HOSTS, 0, (index,))
            try:
                link = self.roster.link_to(host)
                posted.append((link, frame, link.post(frame)))
            except LinkClosed as error:
                lost = host.lost or HostLost(host.name, str(error))
                self._book.fail(call, lost, (index,))
        for link, frame, position in posted:
            link.wait_for_room(frame, position)
        return future

    def sync_workspace(
        self, hosts: Sequence[int], request: SyncRequest, auto_reload: bool
    ) -> SyncedWorkspace:
        """Bring the copies of a folder on these hosts to what it is now; waits until they are."""
        names = {index: self.hosts[index].name for index in hosts}
        synced = self._syncing.sync(names, request)
        if not auto_reload:
            return synced
        with self._lock:
            meshes = list(self._life.meshes.values())
        return replace(synced, reloaded=reload_on_hosts(meshes, set(hosts), self.runtime.call))

    # -- ways to the hosts ----------------------------------------------------------------------

    def _by_hosts(self, frame: Frame) -> None:
        # To all first, then wait: the hosts take large payloads side by side.
        mesh = self._life.meshes.get(frame.mesh)
        if mesh is None:
            self._book.fail(frame.call, self._life.why_over(frame.mesh), frame.ranks)
            return
        for link, position in self._life.post(mesh, frame):
            link.wait_for_room(frame, position)

    def _dial(self, door: Door) -> None:
        """Reach a rank of another host."""

        def dialed(raw: socket.socket | None, _reason: str) -> None:
            if raw is not None:
                sock = wrap(raw, client_context(self.roster.own_credentials), server_side=False)
                self._connected(door, sock, lambda peer: peer_name(peer, door.identity))

        Dialing(self._reactor, door.address, door.port, dialed)

    def _introduce(self, mesh: int, rank: int) -> bool:
        return self._introductions.ask(mesh, rank)

    def _create_for_proc(
        self,
        mesh: int,
        actor: int,
        ranks: tuple[int, ...],
        body: bytes,
        buffers: list[bytes],
        name: str,
        owner: Owner,
        home: str,
    ) -> Future[Any]:
        frame = Frame(Kind.CREATE, body, buffers, mesh=mesh, actor=actor, ranks=ranks)
        return self.runtime.create(frame, name, owner, home)

    def _tell_actor(self, mesh: MeshRecord | None, frame: Frame) -> None:
        if mesh is None:
            self._own.call(frame, lambda _values: None, "an order to an actor")
        else:
            self.runtime.children.tell(mesh, frame)

    def _take_port(self, frame: Frame) -> None:
        """A proc sends to a port: ours, or that of a proc elsewhere."""
        if frame.mesh == CONTROLLER.mesh:
            PORTS.deliver(frame.call, frame.body, frame.buffers)
        elif mesh := self._life.meshes.get(frame.mesh):
            self._life.post(mesh, frame)

    def _connected(
        self,
        message: Connected | Door,
        sock: socket.socket,
        authenticate: Callable[[Any], str] = same_user,
    ) -> None:
        with self._lock:
            mesh = self._life.meshes.get(message.mesh)
            record = mesh.ranks[message.rank] if mesh else None
            if record is None or record.gone or record.incarnation != message.incarnation:
                sock.close()
            else:
                self._caller.connected(
                    message.mesh, message.rank, message.incarnation, sock, authenticate
                )

    # -- in the reactor's thread ---------------------------------------------------------------

    def _on_frame(self, host: HostRecord, frame: Frame) -> None:
        if frame.kind in ANSWERS:
            self._life.casting.take(host, frame)
        elif frame.mesh == self._own.mesh and frame.kind in (Kind.CALL, Kind.CAST):
            assert host.link is not None
            self._own.take(host.link, frame)
        elif frame.kind in (Kind.CALL, Kind.CAST):
            self._life.casting.run_errand(host, frame)
        elif frame.kind is Kind.ASK:
            self._asks.take(host, frame)
        elif frame.kind is Kind.PORT:
            self._take_port(frame)
        elif frame.kind is Kind.EVENT:
            if self._events is not None:
                self._events.write(json.loads(bytes(frame.body)))
        elif frame.kind is Kind.LOG:
            self._streams.take(host.index, loads(frame.body))
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body, frame.buffers)
            if self._life.casting.handle(host, message):
                pass
            elif isinstance(message, LogsStream):
                self._streams.in_force(message.order)
            elif isinstance(message, Door):
                self._introductions.opened(message)
            elif isinstance(message, ProcStarted):
                self._life.proc_started(host, message)
            elif isinstance(message, ProcGone):
                self._introductions.forget(message.mesh, message.rank, message.incarnation)
                self._life.proc_gone(message)
            elif isinstance(message, Connected):
                self._connected(message, frame.take_socket())

    def _forgotten(self, mesh: MeshRecord) -> None:
        self.runtime.children.forget(mesh)
        for rank, record in enumerate(mesh.ranks):
            self._introductions.forget(mesh.id, rank, record.incarnation)
        self._streams.forget(mesh.id, len(mesh.ranks))

    def _on_host_lost(self, host: HostRecord, reason: str) -> None:
        self._life.host_lost(host, reason)
        self._book.fail_ranks(HOSTS, (host.index,), HostLost(host.name, reason))
        self._streams.host_lost(host.index)

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
            self._own.close(grace_s)
            with self._lock:
                for mesh in self._life.meshes.values():
                    mesh.over = mesh.over or MeshStopped("the job was stopped")
            self.roster.close(grace_s)
            with self._lock:
                meshes = list(self._life.meshes.values())
            for mesh in meshes:
                self._book.fail_mesh(mesh.id, mesh.over or MeshStopped("the job was stopped"))
            self._book.fail_mesh(HOSTS, MeshStopped("the job was stopped"))
            listeners.remove(self._failures.hear)
            self._driver.stop()
            self._reactor.stop()
            self._thread.join()
            self._streams.close()
            self.emit("job_ended", exit_code=exit_code)
            if self._events is not None:
                telemetry.set_sink(self._outer_sink, instead_of=self._events.write)
                self._events.close()
            self.closed = True
        atexit.unregister(self.close)

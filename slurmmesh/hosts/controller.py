"""The controller: the links to all hosts, the book of meshes, and what happens on a death."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

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
    SetupError,
)
from slurmmesh.hosts.meshes import MeshRecord, RankRecord
from slurmmesh.hosts.messages import (
    HostHello,
    HostReady,
    HostWelcome,
    ProcGone,
    ProcStarted,
    Shutdown,
    SignalProcs,
    SpawnProcs,
    StopProcs,
)
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
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.identity import JobAuthority, peer_name, server_context
from slurmmesh.wire.links import Link, Listener
from slurmmesh.wire.reactor import Reactor

HEARTBEAT_S = 1.0
HOST_SILENCE_S = 15.0
"""A host that gives no sign of life for so long is lost."""
LEASE_S = 20.0
"""A host that hears nothing for so long ends its procs; longer than HOST_SILENCE_S."""


class Launched(Protocol):
    """A started host agent, as its launcher can watch and end it."""

    def poll(self) -> str | None:
        """None while it runs, else how it ended."""

    def kill(self) -> None:
        """End it the hard way and wait until it is gone."""


@dataclass
class HostRecord:
    """One host.

    Attributes:
        name: of the machine, for people.
        identity: as certified, unique in the job.
        address: under which the other hosts reach it.
        lost: set when it is gone; its procs count as dead.
    """

    index: int
    name: str
    identity: str
    launched: Launched | None = None
    link: Link | None = None
    address: str = ""
    pid: int = 0
    heard: float = 0.0
    ready: bool = False
    lost: HostLost | None = None
    meshes: set[int] = field(default_factory=set)


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
        self.job_id = job_id
        self.job_folder = job_folder
        self.authority = JobAuthority(job_id)
        self.hosts: list[HostRecord] = []
        self._book = CallBook()
        self._meshes: dict[int, MeshRecord] = {}
        self._mesh_ids = itertools.count(1)
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._closing = False
        self._events = None
        if job_folder is not None:
            (job_folder / "logs").mkdir(mode=0o700, exist_ok=True)
            self._events = telemetry.EventLog(job_folder / "events.jsonl")
            telemetry.set_sink(self._events.write)
        self._listener: Listener | None = None
        self._reactor = Reactor()
        self._reactor.call_later(HEARTBEAT_S, self._check_hosts)
        self._thread = threading.Thread(
            target=self._reactor.run, name="slurmmesh-links", daemon=True
        )
        self._thread.start()

    # -- hosts --------------------------------------------------------------------------------

    def listen(self, address: str) -> int:
        """Accept hosts of other nodes over TLS on this address; returns the port.

        Raises:
            SetupError: the address is not one of this machine.
        """
        context = server_context(self.authority.issue("controller"))
        try:
            self._listener = Listener(self._reactor, context, self._accept, address)
        except OSError as error:
            raise SetupError(f"cannot listen on {address or 'any address'}: {error}") from error
        self._reactor.call_soon(self._listener.start)
        return self._listener.port

    def add_host(self, name: str, address: str = "") -> HostRecord:
        """Note a host that is about to be started."""
        with self._lock:
            index = len(self.hosts)
            host = HostRecord(index, name, f"host-{index}", address=address)
            self.hosts.append(host)
            return host

    def attach(self, host: HostRecord, sock: socket.socket) -> None:
        """Take our end of a socket pair whose other end a host of this machine was given."""
        link = Link(
            self._reactor,
            sock,
            authenticate=lambda _sock: host.identity,
            on_open=self._host_opened,
            on_frame=self._on_frame,
            on_close=self._on_close,
        )
        self._reactor.call_soon(link.start)

    def wait_ready(self, hosts: Iterable[HostRecord], timeout: float) -> None:
        """Wait until these hosts are up.

        Raises:
            SetupError: one ended or did not come in time; names each, with what is known.
        """
        missing = list(hosts)
        deadline = time.monotonic() + timeout
        with self._changed:
            while missing := [host for host in missing if not host.ready]:
                ended = [(h, h.launched.poll()) for h in missing if h.launched is not None]
                words = [f"{host.name}: {end}" for host, end in ended if end is not None]
                words += [f"{host.name}: {host.lost.detail}" for host in missing if host.lost]
                if words:
                    raise SetupError("hosts did not start. " + "; ".join(words))
                left = deadline - time.monotonic()
                if left <= 0:
                    names = ", ".join(host.name for host in missing)
                    raise SetupError(f"hosts gave no sign of life within {timeout:g} s: {names}")
                self._changed.wait(min(left, 0.2))

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
                mesh.id, mesh.name, mesh.region, tuple(here), incarnation, mesh.env, mesh.preload
            )
            if host.lost is not None or not self._tell(host, order):
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
                self._tell(self.hosts[index], StopProcs(mesh, tuple(here), grace_s))
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
                self._tell(self.hosts[index], order)

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
                if host.link is None:
                    raise LinkClosed("not connected")
                host.link.send(replace(frame, ranks=here), wait=wait)
            except LinkClosed:
                lost = host.lost or HostLost(host.name, "its link is closed")
                self._book.fail(frame.call, lost)

    def _tell(self, host: HostRecord, message: Any, kind: Kind = Kind.CONTROL) -> bool:
        """Send a message to a host; False if it is gone."""
        if host.link is None:
            return False
        body, buffers = dumps(message)
        try:
            host.link.send(Frame(kind, body, buffers), wait=False)
        except LinkClosed:
            return False
        return True

    # -- in the reactor's thread: hosts --------------------------------------------------------

    def _accept(self, sock: socket.socket) -> None:
        def authenticate(connected: Any) -> str:
            return peer_name(connected, role="host")

        link = Link(
            self._reactor,
            sock,
            authenticate=authenticate,
            on_open=self._host_opened,
            on_frame=self._on_frame,
            on_close=self._on_close,
        )
        link.start()

    def _host_opened(self, link: Link) -> None:
        host = self._host_of(link)
        if host is None or host.link is not None:
            link.close("no host of that name is awaited")
            return
        host.link = link
        host.heard = self._reactor.clock()

    def _host_of(self, link: Link) -> HostRecord | None:
        with self._lock:
            return next((host for host in self.hosts if host.identity == link.peer), None)

    def _on_frame(self, link: Link, frame: Frame) -> None:
        host = self._host_of(link)
        assert host is not None
        host.heard = self._reactor.clock()
        if frame.kind in (Kind.RESULT, Kind.ERROR):
            self._book.answer(frame)
        elif frame.kind is Kind.EVENT:
            if self._events is not None:
                self._events.write(loads(frame.body))
        elif frame.kind is Kind.PING:
            link.send(Frame(Kind.PONG))
        elif frame.kind is Kind.HELLO:
            self._welcome(host, loads(frame.body))
        elif frame.kind is Kind.CONTROL:
            self._HANDLERS[type(message := loads(frame.body, frame.buffers))](self, host, message)

    def _welcome(self, host: HostRecord, hello: HostHello) -> None:
        assert host.link is not None
        host.pid = hello.pid
        folder = self.job_folder
        welcome = HostWelcome(
            name=host.name,
            job_folder=str(folder) if folder else None,
            log=str(folder / "logs" / f"{host.name}.log") if folder else None,
            address=host.address or host.link.peer_address,
            sys_path=tuple(os.path.abspath(entry) for entry in sys.path),
            cwd=os.getcwd(),
            credentials=self.authority.issue(host.identity),
            heartbeat_s=HEARTBEAT_S,
            lease_s=LEASE_S,
        )
        self._tell(host, welcome, Kind.WELCOME)

    def _host_ready(self, host: HostRecord, message: HostReady) -> None:
        with self._changed:
            host.address = message.address
            host.ready = True
            self._changed.notify_all()
        telemetry.emit(
            "host_up", host=host.index, name=host.name, address=host.address, pid=host.pid
        )

    def _on_close(self, link: Link, reason: str) -> None:
        host = self._host_of(link) if link.peer else None
        if host is None or host.link is not link:
            # A stranger, or one of ours whose handshake broke: it was told nothing.
            print(f"slurmmesh: refused a connection: {reason}", file=sys.stderr)
            return
        self._lose(host, reason)

    def _lose(self, host: HostRecord, reason: str) -> None:
        with self._changed:
            if host.lost is not None:
                return
            host.lost = HostLost(host.name, reason)
            host.ready = False
            self._changed.notify_all()
            if host.link is not None:
                host.link.close(reason)
            meshes = [self._meshes[mesh] for mesh in host.meshes]
        if not self._closing:
            telemetry.emit("host_lost", host=host.index, name=host.name, cause=reason)
            print(f"slurmmesh: {host.lost}", file=sys.stderr)
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

    def _check_hosts(self) -> None:
        now = self._reactor.clock()
        with self._lock:
            silent = [
                host
                for host in self.hosts
                if host.ready and not host.lost and now - host.heard > HOST_SILENCE_S
            ]
        for host in silent:
            self._lose(host, f"no sign of life for {now - host.heard:.1f} s")
        self._reactor.call_later(HEARTBEAT_S, self._check_hosts)

    # -- in the reactor's thread: procs --------------------------------------------------------

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

    _HANDLERS: dict[type, Callable[[Controller, HostRecord, Any], None]] = {
        HostReady: _host_ready,
        ProcStarted: _proc_started,
        ProcGone: lambda self, _host, message: self._proc_gone(message),
    }

    # -- the end ------------------------------------------------------------------------------

    def close(self, grace_s: float = 5.0) -> None:
        """End all procs and hosts in order, then by force; leaves nothing running."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
            for mesh in self._meshes.values():
                mesh.supervisor.stopping()
                mesh.over = mesh.over or MeshStopped("the job was stopped")
            for host in self.hosts:
                self._tell(host, Shutdown(grace_s))
            self._changed.wait_for(
                lambda: all(host.lost or host.link is None for host in self.hosts), grace_s + 2.0
            )
        for host in self.hosts:
            if host.launched is not None:
                with contextlib.suppress(OSError):
                    host.launched.kill()
        for mesh in self._meshes.values():
            self._book.fail_mesh(mesh.id, mesh.over or MeshStopped("the job was stopped"))
        if self._listener is not None:
            self._reactor.call_soon(self._listener.close)
        for host in self.hosts:
            if host.link is not None:
                host.link.close()
        self._reactor.stop()
        self._thread.join()
        if self._events is not None:
            telemetry.set_sink(None)
            self._events.close()

"""What a host does once the controller has welcomed its agent: its procs and all that they need."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from slurmmesh.actors.addresses import CONTROLLER
from slurmmesh.actors.messages import Connect, DoorOpened, OpenDoor, ProcWelcome
from slurmmesh.errors import SupervisionError
from slurmmesh.hosts.births import Births
from slurmmesh.hosts.fabric import socket_variables
from slurmmesh.hosts.forkclient import ForkClient
from slurmmesh.hosts.forking import ForkServer
from slurmmesh.hosts.introductions import Pairs
from slurmmesh.hosts.logs import HostLog
from slurmmesh.hosts.machine import machine
from slurmmesh.hosts.masks import Mask, visible
from slurmmesh.hosts.messages import (
    HOSTS,
    ForgetMesh,
    ForkRequest,
    HostsFound,
    HostWelcome,
    Imports,
    Listen,
    LogsStream,
    LogsTaken,
    MeshFound,
    ProcGone,
    ProcStarted,
    SignalProcs,
    SpawnProcs,
    StopProcs,
    StreamLogs,
)
from slurmmesh.hosts.output import Stream
from slurmmesh.hosts.passing import Passing
from slurmmesh.hosts.procs import HostedProc, not_started
from slurmmesh.hosts.relay import ANSWERS
from slurmmesh.hosts.workspace import Workspace
from slurmmesh.linux import reap_strangers, sweep_children
from slurmmesh.slurm.addresses import Choice
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind
from slurmmesh.wire.identity import Revoked
from slurmmesh.wire.links import Link, cut_off
from slurmmesh.wire.reactor import Reactor, say


class Hosting:
    """The procs of one host. In the reactor's thread.

    Attributes:
        gpus: what is seen here.

    Args:
        place: where other hosts reach this one.
        log: of this host; ``output``: takes what the fork server says.
        server: the first fork server, if there is one.
        link: to the controller; ``post`` sends a frame there, and ``tell`` a message, with
            descriptors, if there still is one.
        on_empty: told when procs were ended and the last of them is gone.
    """

    def __init__(
        self,
        reactor: Reactor,
        welcome: HostWelcome,
        place: Choice,
        log: HostLog,
        output: Stream,
        server: ForkServer | None,
        link: Link,
        post: Callable[[Frame], Any],
        tell: Callable[..., Any],
        on_empty: Callable[[], Any],
    ) -> None:
        self._reactor = reactor
        self._welcome = welcome
        self._place = place
        self._log = log
        self._link = link
        self._post = post
        self._tell = tell
        self._on_empty = on_empty
        self._stopping = False
        self.gpus = visible(os.environ, machine())
        self._procs: dict[tuple[int, int], HostedProc] = {}
        self._gone: dict[tuple[int, int], ProcGone] = {}
        self._forks = ForkClient(reactor, output, welcome.log or welcome.name, server)
        self._births = Births(reactor, self._forks)
        self._workspace = Workspace(welcome.name, reactor.call_soon, post, self._forks.renew)
        self._pairs = Pairs(self._procs, tell, place.address, welcome.credentials.name)
        self._passing = Passing(
            reactor, welcome, place.address, self._procs, self._gone, post, tell
        )
        self._handlers: dict[type, Callable[[Any], Any]] = {
            SpawnProcs: self._spawn,
            Imports: self._births.told,
            StopProcs: self._stop,
            SignalProcs: self._signal,
            ForgetMesh: self._forget_mesh,
            Revoked: self._revoke,
            Connect: self._pairs.connect,
            OpenDoor: self._pairs.open_door,
            StreamLogs: self._stream_logs,
            LogsTaken: lambda _message: log.taken(),
            Listen: lambda _message: self._passing.neighbours.listen(),
            HostsFound: self._passing.neighbours.found,
            MeshFound: self._passing.sending.found,
        }

    @property
    def is_empty(self) -> bool:
        """Whether no proc is left."""
        return not self._procs

    def handle(self, message: Any) -> None:
        """Carry out an order of the controller."""
        self._handlers[type(message)](message)

    def take(self, frame: Frame) -> None:
        """Take any other frame that the controller sends."""
        if frame.mesh == HOSTS and frame.kind is Kind.CALL:
            self._workspace.take(frame)
        elif frame.kind is Kind.PORT:
            self._to_port(frame)
        elif frame.kind in ANSWERS:
            self._passing.sending.answered(frame)
        else:
            self._passing.take(self._link, frame)

    # -- orders -------------------------------------------------------------------------------

    def _spawn(self, message: SpawnProcs) -> None:
        self._passing.spawned(message)
        given = socket_variables(self._place, {**os.environ, **message.env})
        request = ForkRequest(
            local_ranks=(),
            env={**given, **message.env},
            preload=message.preload,
            sys_path=self._workspace.import_path(self._welcome.sys_path),
            cwd=self._workspace.working_folder(self._welcome.cwd),
            host_pid=os.getpid(),
            mask=self._mask(message),
        )
        procs = []
        refused: list[ProcGone] = []
        for rank in message.ranks:
            try:
                procs.append((rank % message.per_host, self._host(message, rank)))
            except (OSError, SupervisionError) as error:
                refused.append(not_started(message, rank, self._welcome.name, str(error)))
        self._births.order(message.mesh, request, procs, message.imports)
        for gone in refused:  # together: they are one failure
            self._tell_gone(gone)

    def _mask(self, message: SpawnProcs) -> Mask | None:
        if message.gpus_per_proc is None:
            return None
        if self.gpus.note:
            say(f"slurmmesh host: GPUs {','.join(self.gpus.devices)}: {self.gpus.note}")
        return self.gpus.shares(message.per_host, message.gpus_per_proc, message.first_gpu)

    def _host(self, message: SpawnProcs, rank: int) -> HostedProc:
        """Make all that a proc needs but its process.

        Raises:
            OSError: there is no room for it.
            SupervisionError: the host is being stopped.
        """
        host = self._welcome
        if self._stopping:
            raise SupervisionError("its host is being stopped")
        proc = HostedProc(
            self._reactor,
            self._log,
            message,
            rank,
            host.name,
            on_frame=self._from_proc,
            on_gone=self._on_gone,
        )
        self._procs[message.mesh, rank] = proc
        proc.welcome(
            ProcWelcome(
                job=message.job,
                mesh_id=message.mesh,
                mesh=message.name,
                rank=rank,
                region=message.region,
                host=host.name,
                host_address=self._place.address,
                incarnation=message.incarnation,
                job_folder=host.job_folder,
                credentials=host.credentials,
                bootstrap=message.bootstrap,
            )
        )
        return proc

    def _stop(self, message: StopProcs) -> None:
        for proc in self._select(message.mesh, message.ranks):
            proc.stop(message.grace_s)

    def _signal(self, message: SignalProcs) -> None:
        for proc in self._select(message.mesh, message.ranks):
            if message.ordered:
                proc.kill()
            else:
                proc.signal(message.signum)

    def _revoke(self, revoked: Revoked) -> None:
        self._welcome.credentials.revoked.add(revoked)
        cut_off(self._welcome.credentials.revoked)
        body, _ = dumps(revoked)
        for proc in self._procs.values():
            proc.send(Frame(Kind.CONTROL, body))

    def _stream_logs(self, message: StreamLogs) -> None:
        self._log.order(message)
        for proc in self._select(message.mesh, message.ranks):
            proc.write_logs(message.level)
        self._tell(LogsStream(message.order))

    def _forget_mesh(self, message: ForgetMesh) -> None:
        for key in [key for key in self._gone if key[0] == message.mesh]:
            del self._gone[key]
        self._passing.forget(message.mesh)
        self._log.forget(message.mesh)

    def _select(self, mesh: int, ranks: tuple[int, ...]) -> list[HostedProc]:
        found = (self._procs.get((mesh, rank)) for rank in ranks)
        return [proc for proc in found if proc is not None]

    # -- news of procs ------------------------------------------------------------------------

    def _from_proc(self, proc: HostedProc, frame: Frame) -> None:
        if frame.kind is Kind.HELLO:
            # It tells its pid itself: the fork server's answer may come later than this.
            pid, now = frame.call, time.time()
            self._tell(ProcStarted(proc.mesh, proc.rank, proc.incarnation, pid, now))
        elif frame.kind in ANSWERS:
            frame.ranks = (proc.rank,)
            self._passing.answered(frame)
        elif frame.kind is Kind.CONTROL:
            message = loads(frame.body)
            if isinstance(message, DoorOpened):
                self._pairs.door_opened(proc, message.port)
        elif frame.kind in (Kind.CALL, Kind.CAST, Kind.ASK):
            self._passing.sending.send(proc, frame)
        elif frame.kind is Kind.PORT:
            self._to_port(frame)
        else:
            self._post(frame)

    def _to_port(self, frame: Frame) -> None:
        """A message for a port of a proc that runs here, or else of another process."""
        owner = self._procs.get((frame.mesh, frame.ranks[0]))
        if owner is not None:
            owner.send(frame)
        elif frame.mesh == CONTROLLER.mesh or (frame.mesh, frame.ranks[0]) not in self._gone:
            self._post(frame)

    def _on_gone(self, proc: HostedProc, gone: ProcGone) -> None:
        del self._procs[proc.mesh, proc.rank]
        self._passing.sending.forget(proc)
        self._tell_gone(gone)
        self.reap()
        if self._stopping and not self._procs:
            self._on_empty()

    def _tell_gone(self, gone: ProcGone) -> None:
        self._gone[gone.mesh, gone.rank] = gone
        self._tell(gone)
        self._passing.proc_gone(gone)

    # -- the end ------------------------------------------------------------------------------

    def expect_end(self) -> None:
        """What dies from here on is no failure."""
        for proc in self._procs.values():
            proc.expected = True

    def stop(self, grace_s: float) -> None:
        """End all procs in order, by force after ``grace_s`` seconds; no more are started."""
        self._stopping = True
        for proc in list(self._procs.values()):
            proc.stop(grace_s)

    def kill(self) -> None:
        """End all procs now, and start no more."""
        self._stopping = True
        for proc in list(self._procs.values()):
            proc.kill()

    def reap(self) -> None:
        """Reap orphans. Not while a fork is under way: its child is ours, under a pid not known."""
        if not self._forks.busy:
            reap_strangers({self._forks.pid, *(proc.pid for proc in self._procs.values())})

    def close(self) -> None:
        """End the fork server and all that any proc left behind, and drop the copies of folders."""
        self._forks.close()
        sweep_children()
        self._workspace.close()

"""The runtime (``actors/runtime.py``) of the program: what it, and procs, ask of its meshes."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.caller import Caller
from slurmmesh.actors.direct import Place
from slurmmesh.actors.future import Future
from slurmmesh.actors.owners import Owner
from slurmmesh.actors.runtime import ProcEvent, ProcOptions
from slurmmesh.errors import MeshStopped, SupervisionError, UsageError
from slurmmesh.hosts.children import Children
from slurmmesh.hosts.lifecycle import Lifecycle
from slurmmesh.hosts.meshes import MeshRecord, RankRecord, SpawnedActor
from slurmmesh.hosts.messages import StopProcs
from slurmmesh.hosts.ownproc import OwnProc
from slurmmesh.hosts.reloading import reload_modules
from slurmmesh.hosts.roster import Roster
from slurmmesh.hosts.streams import LogStreams
from slurmmesh.shape import Region
from slurmmesh.supervision import MeshSupervisor
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Buffer, Frame, Kind

if TYPE_CHECKING:
    from slurmmesh.hosts.controller import Controller


class ProgramRuntime:
    """The program's runtime, for its own threads and (``hosts/asks.py``) for procs.

    Attributes:
        controller: whose runtime it is.
        own: the program's own process as a mesh.
        children: who has spawned what.

    Args:
        job: see ``Runtime.job``.
        lock: guards the records of meshes.
        emit: writes an event of the job.
    """

    def __init__(
        self,
        controller: Controller,
        job: str,
        lock: threading.RLock,
        roster: Roster,
        life: Lifecycle,
        caller: Caller,
        own: OwnProc,
        streams: LogStreams,
        emit: Callable[..., Any],
    ) -> None:
        self.controller = controller
        self.job = job
        self.address = CONTROLLER
        self.driver: Driver | None = caller.driver
        self.own = own
        self.children = Children(lock, life, caller.book, self.stop_procs, self.stop_actors)
        self._pid = os.getpid()
        self._ids = itertools.count(own.mesh + 1)
        self._lock = lock
        self._roster = roster
        self._hosts = roster.hosts
        self._life = life
        self._caller = caller
        self._streams = streams
        self._emit = emit

    def call(
        self,
        frame: Frame,
        finish: Callable[[list[Any]], Any],
        what: str,
        timeout: float | None = None,
    ) -> Future[Any]:
        """See ``Runtime.call``."""
        if frame.mesh == self.own.mesh:
            return self.own.call(frame, finish, what, timeout)
        mesh = self._known(frame.mesh)
        if mesh is None or mesh.over is not None:
            return self._over(frame.mesh, what)
        return self._caller.call(frame, finish, what, lambda: mesh.over, timeout)

    def stream(self, frame: Frame, what: str, timeout: float | None = None) -> list[Future[Any]]:
        """See ``Runtime.stream``."""
        if frame.mesh == self.own.mesh:
            return [self.own.call(frame, lambda values: values[0], what, timeout)]
        mesh = self._known(frame.mesh)
        if mesh is None or mesh.over is not None:
            return [self._over(frame.mesh, what) for _ in frame.ranks]
        return self._caller.stream(frame, what, lambda: mesh.over, timeout)

    def cast(self, frame: Frame) -> None:
        """See ``Runtime.cast``."""
        if frame.mesh == self.own.mesh:
            self.own.cast(frame)
            return
        mesh = self._mesh(frame.mesh)
        if mesh.over is not None:
            raise mesh.over
        self._caller.cast(frame)

    def place(self, mesh: int, rank: int) -> Place:
        """See ``Runtime.place``."""
        if mesh != self.own.mesh and self._known(mesh) is None:
            return Place()
        return self._caller.place(mesh, rank)

    def send_to_port(
        self, owner: ProcessId, port: int, body: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """See ``Runtime.send_to_port``."""
        if self._known(owner.mesh) is None:
            return
        frame = Frame(Kind.PORT, body, buffers, port, owner.mesh, owner.incarnation, (owner.rank,))
        self._caller.send_to_port(frame)

    def spawn_procs(
        self,
        hosts: Sequence[int],
        region: Region,
        name: str,
        owner: Owner,
        options: ProcOptions,
    ) -> int:
        """See ``Runtime.spawn_procs``."""
        self.check_process()
        total = len(region)
        per_host = total // len(hosts)
        if options.gpus_per_proc is not None:
            self._check_gpus(hosts, per_host, options.gpus_per_proc, options.first_gpu)
        places = [RankRecord(hosts[rank // per_host]) for rank in range(total)]
        with self._lock:
            if self._life.closing:
                raise MeshStopped("the job is being stopped")
            mesh = MeshRecord(
                next(self._ids),
                name,
                region,
                places,
                per_host,
                options.env,
                options.preload or (),
                MeshSupervisor(options.supervise, name, total),
                owner,
                options.bootstrap,
                options.gpus_per_proc,
                options.first_gpu,
            )
            # What runs before the imports may have a say in them.
            if options.preload is None or options.bootstrap:
                mesh.homes = None
            self.children.new_mesh(mesh)
            self._life.meshes[mesh.id] = mesh
            self._emit(
                "procs_spawned",
                mesh=name,
                ranks=list(range(total)),
                hosts=[self._hosts[place.host].name for place in places],
                sizes=dict(region.extent),
                supervised=options.supervise is not None,
            )
            self._life.start(mesh, tuple(range(total)), 0)
        return mesh.id

    def _check_gpus(self, hosts: Sequence[int], per_host: int, each: int, first: int) -> None:
        for host in map(self._hosts.__getitem__, hosts):
            if host.lost is None and (reason := host.gpus.why_not(first + per_host * each)):
                raise UsageError(f"gpus_per_proc={each} on host {host.name}: {reason}")

    def new_actor(self, mesh: int) -> int:
        """See ``Runtime.new_actor``."""
        if mesh == self.own.mesh:
            return self.own.new_actor()
        return next(self._mesh(mesh).actors)

    def create(self, frame: Frame, name: str, owner: Owner, home: str) -> Future[Any]:
        """See ``Runtime.create``."""
        what = f"building {name!r}"
        if frame.mesh == self.own.mesh:
            self.children.new_actor(frame.mesh, frame.actor, owner)
            return self.own.create(frame, name, owner)
        mesh = self._mesh(frame.mesh)
        self._life.share(mesh, frame)
        with self._lock:
            if mesh.over is not None:
                raise mesh.over
            self.children.new_actor(mesh.id, frame.actor, owner)
            mesh.created.append((frame, what))
            self._life.expect(mesh, home)
            mesh.spawned[frame.actor] = SpawnedActor(name, owner, set(frame.ranks))
            return self._life.create(mesh, frame, what, frame.ranks)

    def get_or_create(self, body: Buffer, buffers: Sequence[Buffer], name: str) -> Future[Any]:
        """See ``Runtime.get_or_create``."""
        future: Future[Any] = Future(f"building {name!r}")
        future.set_result(self.own.get_or_create(body, buffers, name))
        return future

    def ready(self, mesh: int, ranks: Sequence[int]) -> Future[bool]:
        """See ``Runtime.ready``."""
        record = self._known(mesh)
        return self._life.ready(record, ranks) if record else self._over(mesh, "starting")

    def describe_hosts(self, hosts: Sequence[int]) -> list[tuple[str, str]]:
        """See ``Runtime.describe_hosts``."""
        return [(self._hosts[index].name, self._hosts[index].address) for index in hosts]

    def stop_actors(self, mesh: int, actor: int, ranks: Sequence[int]) -> Future[None]:
        """See ``Runtime.stop_actors``."""
        if mesh == self.own.mesh:
            return self.own.stop_actors(actor)
        record = self._known(mesh)
        return self.children.stop_actors(record, actor, ranks) if record else _done()

    def end_owned(self, owner: Owner, grace_s: float) -> Future[None]:
        """See ``Runtime.end_owned``."""
        return self.children.end_owned(owner, grace_s)

    def stop_procs(self, mesh: int, ranks: Sequence[int], grace_s: float) -> Future[None]:
        """See ``Runtime.stop_procs``."""
        record = self._known(mesh)
        if record is None:
            return _done()
        future: Future[None] = Future(f"stopping {record.name!r}")
        with self._lock:
            waiting = {rank for rank in ranks if not record.ranks[rank].gone}
            if len(ranks) == len(record.ranks) and record.over is None:
                record.over = MeshStopped(f"the mesh {record.name!r} was stopped")
                record.supervisor.stopping()
            if waiting:
                record.stops.append((waiting, future))
                for index, here in record.by_host(tuple(sorted(waiting))).items():
                    self._roster.tell(self._hosts[index], StopProcs(mesh, tuple(here), grace_s))
        if not waiting:
            future.set_result(None)
        self._life.forget_if_over(record)
        return future

    def signal_procs(self, mesh: int, ranks: Sequence[int], signum: int) -> None:
        """See ``Runtime.signal_procs``."""
        record = self._known(mesh)
        if record is not None:
            self._life.signal(record, tuple(ranks), signum)

    def subscribe(self, mesh: int, callback: Callable[[ProcEvent], Any]) -> None:
        """See ``Runtime.subscribe``."""
        record = self._mesh(mesh)
        with self._lock:
            record.subscribers.append(callback)

    def stream_logs(
        self, mesh: int, ranks: Sequence[int], level: int | None, window_s: float
    ) -> Future[None]:
        """See ``Runtime.stream_logs``."""
        by_host = self._mesh(mesh).by_host(tuple(ranks))
        return self._streams.choose(mesh, by_host, level, window_s)

    def reload(
        self,
        mesh: int,
        ranks: Sequence[int],
        modules: tuple[str, ...],
        finish: Callable[[list[Any]], Any],
    ) -> Future[Any]:
        """See ``Runtime.reload``."""
        return reload_modules(self._mesh(mesh), ranks, modules, self.call, finish)

    def hosts_of(self, mesh: int, ranks: Sequence[int]) -> list[str]:
        """See ``Runtime.hosts_of``."""
        if mesh == self.own.mesh:
            return [self.own.host]
        record = self._mesh(mesh)
        return [self._hosts[record.ranks[rank].host].name for rank in ranks]

    def host_of(self, process: ProcessId) -> int:
        """The index of the host on which a proc runs."""
        return self._mesh(process.mesh).ranks[process.rank].host

    def _mesh(self, mesh: int) -> MeshRecord:
        """Raises the error of the mesh if it is forgotten."""
        record = self._known(mesh)
        if record is None:
            raise self._life.why_over(mesh)
        return record

    def _known(self, mesh: int) -> MeshRecord | None:
        """A mesh, or None once it is over and forgotten."""
        self.check_process()
        if mesh == self.own.mesh:
            raise UsageError("this cannot be done to the process of the program itself")
        return self._life.meshes.get(mesh)

    def _over(self, mesh: int, what: str) -> Future[Any]:
        """What a call to a mesh that is over gets."""
        record = self._life.meshes.get(mesh)
        future: Future[Any] = Future(what)
        future.set_exception((record and record.over) or self._life.why_over(mesh))
        return future

    def check_process(self) -> None:
        """Raises SupervisionError in a forked child."""
        if os.getpid() != self._pid:
            raise SupervisionError(
                f"this process is a fork of the controller (pid {self._pid}): it cannot use the "
                "controller's meshes; start it with the spawn method, or make it an actor"
            )


def _done() -> Future[None]:
    """Of what there was nothing to do for."""
    future: Future[None] = Future("")
    future.set_result(None)
    return future

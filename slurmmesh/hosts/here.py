"""What is around whoever asks, in the program or in an actor: its host, its proc, its job."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, cast

from slurmmesh.actors.actor import Actor
from slurmmesh.actors.future import Future
from slurmmesh.actors.mesh import ActorMesh, ProcMesh, packed_actor
from slurmmesh.actors.remote import proc_here
from slurmmesh.actors.runtime import Runtime
from slurmmesh.hosts.job import local_hosts, running_job
from slurmmesh.hosts.mesh import HostMesh
from slurmmesh.hosts.ownproc import NAME, REGION
from slurmmesh.shape import Extent, Region

if TYPE_CHECKING:
    from slurmmesh.hosts.runtime import ProgramRuntime

# Held while the host starts, so that two threads get the same one.
_lock = threading.RLock()
_this_host: HostMesh | None = None


def this_host() -> HostMesh:
    """This machine as a host without dimensions; started once per program.

    In an actor: the host it runs on.
    """
    here = proc_here()
    if here is not None:
        region = Region.from_ranks(Extent((), ()), [here.host_index()])
        return HostMesh(here, region)
    global _this_host
    with _lock:
        if _this_host is None or _this_host.stopped:
            hosts = local_hosts(1)
            _this_host = hosts.slice(hosts=0)
        return _this_host


def this_proc() -> ProcMesh:
    """The proc that asks, as a mesh without dimensions: for actors beside the one that runs.

    In the program itself: its own process. An actor there runs in a thread of its own and gets
    copies of what it is sent, as everywhere.
    """
    here = proc_here()
    if here is not None:
        return here.this_proc()
    runtime = _program()
    return ProcMesh(runtime, runtime.own.mesh, NAME, REGION, REGION)


def get_or_spawn_controller(
    name: str, cls: type[Actor], *args: Any, **kwargs: Any
) -> Future[ActorMesh]:
    """The one actor of this name in the job, whoever asks first, in the program or in an actor.

    It lives in the program's own process, to the end of the job. If it is there already ``args``
    count for nothing.

    Raises as ``ProcMesh.spawn``; the future fails with MeshStopped if the job is being stopped.
    """
    here = proc_here()
    runtime: Runtime = here if here is not None else _program()
    body, buffers = packed_actor(name, cls, args, kwargs, REGION)
    found: Future[ActorMesh] = Future(f"building {name!r}")

    def built(answer: Future[Any]) -> None:
        error = answer.exception(0)
        if error is not None:
            found.set_exception(error)
            return
        mesh, actor = answer.get(0)
        procs = ProcMesh(runtime, mesh, NAME, REGION, REGION)
        found.set_result(ActorMesh(runtime, procs, actor, name, cls, REGION, None))

    runtime.get_or_create(body, buffers, name).add_done_callback(built)
    return found


def _program() -> ProgramRuntime:
    """That of this program's job, or else of its ``this_host()``."""
    with _lock:
        job = running_job()
        if job is not None:
            return job._controller.runtime
        return cast("ProgramRuntime", this_host()._runtime)

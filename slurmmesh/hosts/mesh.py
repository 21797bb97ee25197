"""Meshes of hosts, as the user's program holds them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from slurmmesh import config
from slurmmesh.actors.addresses import CONTROLLER
from slurmmesh.actors.coroutine import CoroutineFuture
from slurmmesh.actors.future import Future
from slurmmesh.actors.mesh import ProcMesh
from slurmmesh.actors.owners import new_child
from slurmmesh.actors.runtime import ProcOptions, Runtime, runtime_of
from slurmmesh.errors import UsageError
from slurmmesh.hosts.masks import VARIABLES
from slurmmesh.hosts.syncing import MAX_BYTES, SyncedWorkspace, SyncRequest, in_background
from slurmmesh.shape import Extent, Region, Shaped
from slurmmesh.supervision import Supervision
from slurmmesh.wire.codec import dumps

if TYPE_CHECKING:
    from slurmmesh.hosts.controller import Controller
    from slurmmesh.hosts.runtime import ProgramRuntime


class HostMesh(Shaped):
    """Hosts of a job. ``region`` covers their indices in the job."""

    def __init__(self, runtime: Runtime, region: Region) -> None:
        self._runtime = runtime
        self._region = region

    @property
    def region(self) -> Region:
        """Its shape, and the indices of its hosts in the job."""
        return self._region

    def __repr__(self) -> str:
        return f"HostMesh({self.sizes}: {', '.join(self.names)})"

    def _with_region(self, region: Region) -> HostMesh:
        return HostMesh(self._runtime, region)

    def __reduce__(self) -> tuple[Any, ...]:
        return _host_mesh, (self._runtime.job, self._region)

    @property
    def names(self) -> list[str]:
        """Names of the hosts."""
        return [name for name, _ in self._runtime.describe_hosts(self.region.ranks)]

    @property
    def addresses(self) -> list[str]:
        """Addresses under which the hosts reach each other."""
        return [address for _, address in self._runtime.describe_hosts(self.region.ranks)]

    @property
    def initialized(self) -> Future[bool]:
        """Done when the hosts are up, which those of a mesh always were once."""
        future: Future[bool] = Future("starting hosts")
        future.set_result(True)
        return future

    def spawn_procs(
        self,
        per_host: Mapping[str, int] | None = None,
        bootstrap: Callable[[], Any] | None = None,
        name: str = "procs",
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] | None = (),
        supervise: Supervision | None = None,
        gpus_per_proc: int | None = None,
        first_gpu: int = 0,
    ) -> ProcMesh:
        """Start procs on each host; returns at once.

        The mesh has the dimensions of this one followed by those of ``per_host``; ranks are
        numbered row-major. Each proc gets ``RANK``, ``LOCAL_RANK`` and ``WORLD_SIZE`` of its
        mesh in the environment. Procs that an actor spawns end with it.

        Args:
            per_host: dimensions and sizes of what is started on each host; None for one proc.
            bootstrap: a function, which may be ``async``, that each proc runs before any actor is
                built in it; it sees its ``current_rank()``. If it raises the proc ends, and calls
                fail with ``ProcDied``, which has the last lines of the traceback.
            name: label for logs, errors and reports; two spawns of one name are two meshes.
            env: added to the environment of each proc.
            preload: modules that each host imports once, before it forks the procs. It does so,
                too, with the module of the actors that are spawned next, if that bears it (see
                docs/code.md) and there is no ``bootstrap``; None: it does not.
            supervise: what to do when procs die; None: nothing is restarted.
            gpus_per_proc: so many of the host's GPUs each proc sees, and no others; restarted, it
                sees the same. In the proc they are counted from 0 (see docs/gpu.md). None: it sees
                what the host sees.
            first_gpu: the first of those that the procs of a host share: for several meshes on the
                same hosts, each with GPUs of its own.

        Raises:
            ValueError: a dimension twice, or a size below 1.
            UsageError: a name, an environment or a preload list that cannot be used; or a host
                has too few GPUs, or masks that contradict each other.
            MeshStopped: the job is being stopped.
        """
        if not isinstance(name, str) or not name or not name.isprintable():
            raise UsageError(f"a mesh needs a printable name, not {name!r}")
        if isinstance(preload, str):
            raise UsageError(f"preload takes a list of modules: [{preload!r}]")
        if per_host is not None and not isinstance(per_host, Mapping):
            raise UsageError(f'per_host takes names and sizes: {{"gpus": {per_host!r}}}')
        environment = dict(env or {})
        for key, value in environment.items():
            _check_variable(key, value)
        _check_gpus(gpus_per_proc, first_gpu, environment)
        inner = Extent.of(per_host or {})
        extent = Extent((*self.extent.labels, *inner.labels), (*self.extent.sizes, *inner.sizes))
        region = Region(extent)
        mesh = self._runtime.spawn_procs(
            self.region.ranks,
            region,
            name,
            new_child(self._runtime),
            ProcOptions(
                environment,
                None if preload is None else tuple(preload),
                supervise,
                _packed(bootstrap),
                gpus_per_proc,
                first_gpu,
            ),
        )
        return ProcMesh(self._runtime, mesh, name, region, region)

    def sync_workspace(
        self,
        folder: str | os.PathLike[str] | None = None,
        *,
        exclude: Iterable[str] = (),
        max_bytes: int = MAX_BYTES,
        auto_reload: bool = False,
    ) -> CoroutineFuture[SyncedWorkspace]:
        """Copy a folder of code to each of these hosts; only what a host lacks is sent.

        Procs that are started there afterwards find its modules in the copy; see docs/code.md for
        what is left out, and for where the copy is. Returns at once, a future and coroutine; what
        the folder holds by then is read in the background.

        Args:
            folder: None for the one the program's script is in.
            exclude: lines as of a .gitignore file in the folder; they count more than that.
            max_bytes: of all files together; more is taken for a mistake, and nothing is sent.
            auto_reload: also reload what was edited in procs that run there, see
                ``ProcMesh.reload``.

        The future fails with WorkspaceError if the folder cannot be read or copied, HostLost if a
        host is gone, and ActorError if a module cannot be reloaded.

        Raises:
            UsageError: there is no such folder, it is that of the jobs, or a rule is no text.
        """
        controller = self._controller
        jobs = [config.load_settings().job_root, controller.roster.job_folder]
        request = SyncRequest.of(folder, exclude, max_bytes, filter(None, jobs))
        hosts = self.region.ranks
        return CoroutineFuture(
            in_background(
                f"sync_workspace of {request.folder}",
                lambda: controller.sync_workspace(hosts, request, auto_reload),
            )
        )

    @property
    def stopped(self) -> bool:
        """Whether the job of these hosts has been stopped."""
        return self._runtime.address == CONTROLLER and self._controller.closed

    def stop(self) -> Future[None]:
        """End the job's hosts and all that runs on them. The mesh is of no use afterwards.

        All is gone when it returns; the future is done.
        """
        self._controller.close()
        done: Future[None] = Future("stopping hosts")
        done.set_result(None)
        return done

    shutdown = stop

    async def __aenter__(self) -> HostMesh:
        return self

    async def __aexit__(self, *_error: object) -> None:
        self.stop()

    @property
    def _controller(self) -> Controller:
        if self._runtime.address != CONTROLLER:
            raise UsageError("this is done to hosts by the program itself, not by an actor")
        return cast("ProgramRuntime", self._runtime).controller


def _host_mesh(job: str, region: Region) -> HostMesh:
    return HostMesh(runtime_of(job), region)


def _packed(bootstrap: Callable[[], Any] | None) -> bytes:
    if bootstrap is None:
        return b""
    if not callable(bootstrap):
        hint = f"; a name is given as name={bootstrap!r}" if isinstance(bootstrap, str) else ""
        raise UsageError(f"bootstrap is a function without arguments, not {bootstrap!r}{hint}")
    try:
        body, buffers = dumps(bootstrap)
    except Exception as error:
        raise UsageError(f"the bootstrap function cannot be sent: {error}") from error
    if buffers:
        raise UsageError("the bootstrap function holds arrays: load them in it instead")
    return body


def _check_gpus(per_proc: object, first: object, env: Mapping[str, str]) -> None:
    if type(first) is not int or first < 0:
        raise UsageError(f"first_gpu is the number of a GPU, from 0 on, not {first!r}")
    if per_proc is None:
        if first:
            raise UsageError("first_gpu is for procs that share GPUs: give gpus_per_proc, too")
        return
    if type(per_proc) is not int or per_proc < 0:
        raise UsageError(f"gpus_per_proc is a number of GPUs, or None, not {per_proc!r}")
    if masks := [name for name in VARIABLES if name in env]:
        raise UsageError(f"give gpus_per_proc or {masks[0]} in env, not both")


def _check_variable(key: object, value: object) -> None:
    """An environment variable that no process could be given is refused before any is started."""
    if not isinstance(key, str) or not isinstance(value, str):
        raise UsageError(f"env needs text for names and values, not {key!r}: {value!r}")
    if not key or "=" in key or "\0" in key + value:
        raise UsageError(f"env cannot hold {key!r}: {value!r}")
    try:
        os.fsencode(key + value)
    except UnicodeEncodeError as error:
        raise UsageError(f"env cannot hold {key!r}: {value!r}: {error}") from error

"""What meshes need of the process they are used in: the controller, or a proc."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.direct import Place
from slurmmesh.actors.future import Future
from slurmmesh.actors.owners import Owner
from slurmmesh.errors import ExitCause, UsageError
from slurmmesh.shape import Region
from slurmmesh.supervision import Supervision
from slurmmesh.wire.driver import Driver
from slurmmesh.wire.frames import Buffer, Frame


@dataclass(frozen=True)
class ProcEvent:
    """Something happened to a proc of a mesh.

    Attributes:
        kind: ``up`` (registered), ``exited``, ``restarted`` (its actors are built again),
            ``given_up`` (not started again: the restart intensity is spent and nothing of the
            mesh runs any more, or the rank's host is lost).
        at: seconds since the epoch, taken where it happened.
        seen_at: the same clock, when the controller knew.
        cause: of ``exited`` and ``given_up``.
        expected: of ``exited``: it was asked to stop.
    """

    kind: str
    mesh: str
    rank: int
    host: str
    pid: int
    incarnation: int
    at: float
    seen_at: float
    cause: ExitCause | None = None
    expected: bool = False


@dataclass(frozen=True)
class ProcOptions:
    """How procs are started, see ``HostMesh.spawn_procs``; ``bootstrap`` is pickled."""

    env: dict[str, str]
    preload: tuple[str, ...] | None
    supervise: Supervision | None
    bootstrap: bytes
    gpus_per_proc: int | None = None
    first_gpu: int = 0


class Runtime(Protocol):
    """What meshes need of the process that owns the links."""

    @property
    def job(self) -> str:
        """Names the controller: meshes of one are of no use to another."""

    @property
    def address(self) -> ProcessId:
        """The process itself."""

    @property
    def driver(self) -> Driver | None:
        """Of the loop that messages for this process come by."""

    def send_to_port(
        self, owner: ProcessId, port: int, body: Buffer, buffers: Sequence[Buffer]
    ) -> None:
        """Send to a port of another process; a dead owner is no error, it is dropped."""

    def new_actor(self, mesh: int) -> int:
        """A number for a new actor of a mesh."""

    def call(
        self,
        frame: Frame,
        finish: Callable[[list[Any]], Any],
        what: str,
        timeout: float | None = None,
    ) -> Future[Any]:
        """Send a frame that is answered by each of its ranks, in so many seconds if it is given."""

    def stream(self, frame: Frame, what: str, timeout: float | None = None) -> list[Future[Any]]:
        """Send such a frame; futures of the answers in the order in which they come."""

    def cast(self, frame: Frame) -> None:
        """Send a frame that is not answered."""

    def place(self, mesh: int, rank: int) -> Place:
        """Where a rank is found: has a direct link to it when it may be used."""

    def create(self, frame: Frame, name: str, owner: Owner, home: str) -> Future[Any]:
        """Build an actor on each rank, and again on each that is restarted.

        Args:
            home: the module of its class, if the procs are going to import one.
        """

    def get_or_create(self, body: Buffer, buffers: Sequence[Buffer], name: str) -> Future[Any]:
        """Build an actor in the controller's process unless one of that name is there.

        The future has the mesh and the number of the actor.
        """

    def spawn_procs(
        self,
        hosts: Sequence[int],
        region: Region,
        name: str,
        owner: Owner,
        options: ProcOptions,
    ) -> int:
        """Start a proc for each place of ``region``, evenly over ``hosts`` in order.

        Returns the id of the mesh.
        """

    def ready(self, mesh: int, ranks: Sequence[int]) -> Future[bool]:
        """Done when these procs are up."""

    def describe_hosts(self, hosts: Sequence[int]) -> list[tuple[str, str]]:
        """Names and addresses of hosts."""

    def stop_actors(self, mesh: int, actor: int, ranks: Sequence[int]) -> Future[None]:
        """End actors; done when all have cleaned up."""

    def end_owned(self, owner: Owner, grace_s: float) -> Future[None]:
        """End what an owner has spawned; done when all of it is gone."""

    def stop_procs(self, mesh: int, ranks: Sequence[int], grace_s: float) -> Future[None]:
        """End procs in order; done when all are gone."""

    def signal_procs(self, mesh: int, ranks: Sequence[int], signum: int) -> None:
        """Send a signal to procs."""

    def subscribe(self, mesh: int, callback: Callable[[ProcEvent], Any]) -> None:
        """Tell ``callback`` all that happens to the procs of a mesh."""

    def stream_logs(
        self, mesh: int, ranks: Sequence[int], level: int | None, window_s: float
    ) -> Future[None]:
        """Show what these ranks write in the controller's output, from a level on; None: not."""

    def reload(
        self,
        mesh: int,
        ranks: Sequence[int],
        modules: tuple[str, ...],
        finish: Callable[[list[Any]], Any],
    ) -> Future[Any]:
        """Have modules reloaded in procs; an answer of each rank is what was."""

    def hosts_of(self, mesh: int, ranks: Sequence[int]) -> list[str]:
        """Names of the hosts on which these ranks run, in order."""


_runtimes: weakref.WeakValueDictionary[str, Runtime] = weakref.WeakValueDictionary()
_home: Runtime | None = None


def register(runtime: Runtime) -> None:
    """Have meshes and ports that come to this process use it, if they are of its job."""
    global _home
    _runtimes[runtime.job] = runtime
    if runtime.address != CONTROLLER:
        _home = runtime


def home() -> Runtime | None:
    """The runtime of the proc that this process is; None if it is none."""
    return _home


def find_runtime(job: str) -> Runtime | None:
    """The runtime of this process for a job; None if it has no part in it, or no longer."""
    return _runtimes.get(job)


def runtime_of(job: str) -> Runtime:
    """The runtime of this process for a job.

    Raises:
        UsageError: this process has no part in that job.
    """
    runtime = find_runtime(job)
    if runtime is None:
        raise UsageError("a mesh of another job, or of one that is over, cannot be used here")
    return runtime

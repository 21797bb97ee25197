"""Meshes of procs and of actors, as a caller holds them."""

from __future__ import annotations

import logging
import math
import signal
from collections.abc import Callable
from types import ModuleType
from typing import Any

from slurmmesh.actors.actor import (
    Actor,
    check_arguments,
    endpoint_names,
    endpoint_signature,
    is_endpoint,
)
from slurmmesh.actors.coroutine import CoroutineFuture
from slurmmesh.actors.creating import packed
from slurmmesh.actors.endpoints import EndpointRef
from slurmmesh.actors.future import Future
from slurmmesh.actors.homes import home_of
from slurmmesh.actors.owners import new_child
from slurmmesh.actors.runtime import ProcEvent, Runtime, runtime_of
from slurmmesh.actors.supervising import Ready, order
from slurmmesh.errors import UsageError
from slurmmesh.shape import Region, Shaped, ValueMesh
from slurmmesh.wire.frames import Frame, Kind


class ProcMesh(Shaped):
    """Processes, one per rank, on one or more hosts. Made by ``HostMesh.spawn_procs``."""

    def __init__(
        self, runtime: Runtime, mesh: int, name: str, whole: Region, region: Region
    ) -> None:
        self._runtime = runtime
        self._mesh = mesh
        self.name = name
        self.whole = whole
        """The region of the mesh that was spawned, of which this may be a slice."""
        self._region = region

    @property
    def region(self) -> Region:
        """Its shape, and the ranks of the spawned mesh that it covers."""
        return self._region

    def __repr__(self) -> str:
        return f"ProcMesh({self.name!r}, {self.sizes})"

    def _with_region(self, region: Region) -> ProcMesh:
        return ProcMesh(self._runtime, self._mesh, self.name, self.whole, region)

    def __reduce__(self) -> tuple[Any, ...]:
        return _proc_mesh, (self._runtime.job, self._mesh, self.name, self.whole, self._region)

    @property
    def initialized(self) -> Future[bool]:
        """Done when all these procs are up; fails if one could not be started."""
        return self._runtime.ready(self._mesh, self.region.ranks)

    async def __aenter__(self) -> ProcMesh:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    @property
    def hosts(self) -> list[str]:
        """Name of the host of each rank."""
        return self._runtime.hosts_of(self._mesh, self.region.ranks)

    def spawn(self, name: str, cls: type[Actor], *args: Any, **kwargs: Any) -> ActorMesh:
        """Build one actor in each proc; returns at once, a failure shows at the first call.

        The first actor of a proc runs on its main thread, each further one on its own.

        Raises:
            TypeError: ``cls`` is no Actor, or the arguments do not fit its constructor.
            ValueError: an endpoint has the name of something every mesh has.
            UsageError: the class or the arguments cannot be sent.
        """
        body, buffers = packed_actor(name, cls, args, kwargs, self.region)
        actor = self._runtime.new_actor(self._mesh)
        # Copies: a restarted rank gets the arguments as they are now.
        owned = [bytes(buffer) for buffer in buffers]
        frame = Frame(
            Kind.CREATE, body, owned, mesh=self._mesh, actor=actor, ranks=self.region.ranks
        )
        created = self._runtime.create(frame, name, new_child(self._runtime), home_of(cls))
        return ActorMesh(self._runtime, self, actor, name, cls, self.region, created)

    def on_event(self, callback: Callable[[ProcEvent], Any]) -> None:
        """Have ``callback(event)`` called for what happens to these procs.

        It runs in the thread that drives the links: it must be short and must not wait for a
        future. Putting the event in a queue is the usual thing to do.
        """
        ranks = frozenset(self.region.ranks)
        self._runtime.subscribe(
            self._mesh, lambda event: callback(event) if event.rank in ranks else None
        )

    def logging_option(
        self,
        stream_to_client: bool = True,
        aggregate_window_sec: float | None = 3,
        level: int = logging.INFO,
    ) -> CoroutineFuture[None]:
        """Show in the controller's output what these procs write, beside their hosts' logs.

        It holds for the ranks of this slice, also when they are started again, until the next
        call for them. Lines of stdout go to stdout, those of stderr to stderr.

        Args:
            aggregate_window_sec: for so long lines are held and similar ones, of all ranks, are
                folded into the first, with their number; None or 0: each is shown at once.
            level: of ``logging`` that is shown, and written if the procs have set no level of
                their own. What does not come through ``logging`` counts as INFO on stdout and
                as ERROR on stderr.

        Returns a future, and coroutine, that is done once it is in force. Raises UsageError for
        what is no time or no level.
        """
        window = 0 if aggregate_window_sec is None else aggregate_window_sec
        if (
            isinstance(window, bool)
            or not isinstance(window, (int, float))
            or not 0 <= window < math.inf
        ):
            raise UsageError(
                "aggregate_window_sec is a number of seconds of at least 0, or None, not "
                f"{aggregate_window_sec!r}"
            )
        if isinstance(level, bool) or not isinstance(level, int) or level < 0:
            raise UsageError(
                f"level is one of logging's numbers, such as logging.INFO, not {level!r}"
            )
        least = level if stream_to_client else None
        return CoroutineFuture(
            self._runtime.stream_logs(self._mesh, self.region.ranks, least, window)
        )

    def send_signal(self, signum: int, rank: int | None = None) -> None:
        """Send a signal to one rank (of this slice), or to all.

        Raises:
            IndexError: no such rank.
            UsageError: no such signal.
        """
        ranks = self.region.ranks
        if rank is not None:
            if not 0 <= rank < len(ranks):
                raise IndexError(f"{self!r} has no rank {rank}")
            ranks = (ranks[rank],)
        if not 0 < signum < signal.NSIG:
            raise UsageError(f"there is no signal {signum}")
        self._runtime.signal_procs(self._mesh, ranks, int(signum))

    def reload(self, *modules: str | ModuleType) -> Future[ValueMesh[tuple[str, ...]]]:
        """Reload modules of yours in these procs: those named, or else those that were edited.

        Modules that import them are reloaded as well, after them. It happens in the thread of each
        actor, between two messages, and then the actor's methods are those of its class's new
        definition. The future has the names of the modules that each rank reloaded, and fails with
        ``ActorError`` if one cannot be reloaded. A proc without actors reloads nothing.

        Raises:
            TypeError: something that is no module and no name of one.
        """
        names: tuple[Any, ...] = tuple(getattr(each, "__name__", each) for each in modules)
        if not all(isinstance(name, str) for name in names):
            raise TypeError(f"reload takes modules or their names, not {modules!r}")
        region = self.region
        return self._runtime.reload(
            self._mesh, region.ranks, names, lambda values: ValueMesh(region, values)
        )

    def stop(self, grace_s: float = 5.0) -> Future[None]:
        """End these procs and their actors in order.

        Each finishes the message it is at, runs ``__cleanup__`` and exits; one that has not
        after ``grace_s`` seconds is killed. The future is done when all are gone.

        Raises UsageError if ``grace_s`` is no number of seconds.
        """
        if not 0 <= grace_s < math.inf:
            raise UsageError(f"grace_s is a number of seconds of at least 0, not {grace_s}")
        return self._runtime.stop_procs(self._mesh, self.region.ranks, grace_s)


_OWN = frozenset({"_runtime", "_procs", "_actor", "_cls", "name", "_region", "_created"})
"""What each ActorMesh has besides its class: no endpoint of such a name could be called."""


class ActorMesh(Shaped):
    """Actors of one class, one in each proc. Its endpoints are its attributes."""

    def __init__(
        self,
        runtime: Runtime,
        procs: ProcMesh,
        actor: int,
        name: str,
        cls: type[Actor],
        region: Region,
        created: Future[Any] | None,
    ) -> None:
        self._runtime = runtime
        self._procs = procs
        self._actor = actor
        self._cls = cls
        self.name = name
        self._region = region
        self._created = created

    @property
    def region(self) -> Region:
        """Its shape, and the ranks of the spawned mesh that it covers."""
        return self._region

    def __repr__(self) -> str:
        return f"ActorMesh({self.name!r}, {self._cls.__name__}, {self.sizes})"

    def _with_region(self, region: Region) -> ActorMesh:
        return ActorMesh(
            self._runtime, self._procs, self._actor, self.name, self._cls, region, self._created
        )

    @property
    def initialized(self) -> Future[Any]:
        """Done when every constructor has returned; fails if one raised."""
        if self._created is None:  # the mesh came from another process
            self._created = self._runtime.call(
                order(Ready(), self._procs._mesh, self._actor, self._region.ranks),
                lambda _values: True,
                f"building {self.name!r}",
            )
        return self._created

    def stop(self, reason: str = "stopped by its owner") -> Future[None]:
        """End these actors, and nothing else: their procs stay, with the other actors in them.

        Each finishes the message it is at. Calls that wait behind it fail with ``MeshStopped``, as
        later ones do; broadcasts vanish. What the actors have spawned ends, then ``__cleanup__``
        runs. The future is done when all of that is.

        Args:
            reason: for readers of the program.
        """
        return self._runtime.stop_actors(self._procs._mesh, self._actor, self._region.ranks)

    async def __aenter__(self) -> ActorMesh:
        return self

    async def __aexit__(self, *_error: object) -> None:
        await self.stop()

    def __getattr__(self, name: str) -> EndpointRef:
        if name == "_cls" or name.startswith("__"):  # asked for before __init__ ran, or by copy
            raise AttributeError(name)
        if not is_endpoint(self._cls, name):
            has = ", ".join(endpoint_names(self._cls)) or "none"
            if callable(getattr(self._cls, name, None)):
                has += f"; mark the method {name!r} with @endpoint"
            raise AttributeError(f"{self._cls.__name__} has no endpoint {name!r}; it has {has}")
        made = self.__dict__[name] = EndpointRef(self, name)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        whole = self._procs._with_region(self._procs.whole)
        return _actor_mesh, (whole, self._actor, self.name, self._cls, self._region)


def packed_actor(
    name: str, cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any], region: Region
) -> tuple[bytes, list[memoryview]]:
    """The message that has an actor built, checked. Raises as ``ProcMesh.spawn``."""
    if not (isinstance(cls, type) and issubclass(cls, Actor)):
        raise TypeError(f"{cls!r} is not a class derived from slurmmesh.Actor")
    if not isinstance(name, str) or not name:
        raise TypeError(f"actors need a name, which is text, not {name!r}")
    taken = [each for each in endpoint_names(cls) if hasattr(ActorMesh, each) or each in _OWN]
    if taken:
        raise ValueError(f"{cls.__name__}: rename the endpoint {taken[0]!r}, meshes have one")
    if cls.__init__ is not object.__init__:
        check_arguments(cls.__name__, endpoint_signature(cls, "__init__"), args, kwargs)
    elif args or kwargs:
        raise TypeError(f"{cls.__name__} takes no arguments")
    try:
        return packed(name, cls, args, kwargs, region)
    except Exception as error:
        raise UsageError(f"{name!r} cannot be sent to its procs: {error}") from error


def _proc_mesh(job: str, mesh: int, name: str, whole: Region, region: Region) -> ProcMesh:
    return ProcMesh(runtime_of(job), mesh, name, whole, region)


def _actor_mesh(
    procs: ProcMesh, actor: int, name: str, cls: type[Actor], region: Region
) -> ActorMesh:
    return ActorMesh(procs._runtime, procs, actor, name, cls, region, None)

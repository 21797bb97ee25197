"""Meshes of procs and of actors, as a caller holds them."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from slurmmesh.actors.actor import (
    Actor,
    endpoint_names,
    endpoint_signature,
    is_endpoint,
    positional_counts,
)
from slurmmesh.actors.direct import DirectLink, Place
from slurmmesh.actors.future import Future
from slurmmesh.actors.messages import CreateActor
from slurmmesh.errors import ExitCause, LinkClosed, UsageError
from slurmmesh.shape import Region, Shaped, ValueMesh
from slurmmesh.wire.batches import is_plain
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import Frame, Kind


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


class Runtime(Protocol):
    """What meshes need of the process that owns the links."""

    def call(
        self,
        frame: Frame,
        finish: Callable[[list[Any]], Any],
        what: str,
    ) -> Future[Any]:
        """Send a frame that is answered by each of its ranks."""

    def cast(self, frame: Frame) -> None:
        """Send a frame that is not answered."""

    def place(self, mesh: int, rank: int) -> Place:
        """Where a rank is found: has a direct link to it when it may be used."""

    def create(self, frame: Frame, what: str) -> Future[Any]:
        """Build an actor on each rank, and again on each that is restarted."""

    def stop_procs(self, mesh: int, ranks: Sequence[int], grace_s: float) -> Future[None]:
        """End procs in order; done when all are gone."""

    def signal_procs(self, mesh: int, ranks: Sequence[int], signum: int) -> None:
        """Send a signal to procs."""

    def subscribe(self, mesh: int, callback: Callable[[ProcEvent], Any]) -> None:
        """Tell ``callback`` all that happens to the procs of a mesh."""

    def hosts_of(self, mesh: int, ranks: Sequence[int]) -> list[str]:
        """Names of the hosts on which these ranks run, in order."""


class ProcMesh(Shaped):
    """Processes, one per rank, on one or more hosts. Made by ``HostMesh.spawn_procs``."""

    def __init__(
        self, runtime: Runtime, mesh: int, name: str, region: Region, actors: itertools.count[int]
    ) -> None:
        self._runtime = runtime
        self._mesh = mesh
        self._actors = actors
        self.name = name
        self._region = region

    @property
    def region(self) -> Region:
        """Its shape, and the ranks of the spawned mesh that it covers."""
        return self._region

    def __repr__(self) -> str:
        return f"ProcMesh({self.name!r}, {self.sizes})"

    def _with_region(self, region: Region) -> ProcMesh:
        return ProcMesh(self._runtime, self._mesh, self.name, region, self._actors)

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
        if not (isinstance(cls, type) and issubclass(cls, Actor)):
            raise TypeError(f"{cls!r} is not a class derived from slurmmesh.Actor")
        taken = [name for name in endpoint_names(cls) if hasattr(ActorMesh, name) or name in _OWN]
        if taken:
            raise ValueError(f"{cls.__name__}: rename the endpoint {taken[0]!r}, meshes have one")
        if cls.__init__ is not object.__init__:
            endpoint_signature(cls, "__init__").bind(None, *args, **kwargs)
        elif args or kwargs:
            raise TypeError(f"{cls.__name__} takes no arguments")
        actor = next(self._actors)
        try:
            body, buffers = dumps(CreateActor(name, cls, args, kwargs))
        except Exception as error:
            raise UsageError(f"{name!r} cannot be sent to its procs: {error}") from error
        # Copies: a restarted rank gets the arguments as they are now.
        owned = [bytes(buffer) for buffer in buffers]
        frame = Frame(
            Kind.CREATE, body, owned, mesh=self._mesh, actor=actor, ranks=self.region.ranks
        )
        created = self._runtime.create(frame, f"building {name!r}")
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

    def stop(self, grace_s: float = 5.0) -> Future[None]:
        """End these procs and their actors in order.

        Each finishes the message it is at, runs ``__cleanup__`` and exits; one that has not
        after ``grace_s`` seconds is killed. The future is done when all are gone.

        Raises UsageError if ``grace_s`` is no number of seconds.
        """
        if not 0 <= grace_s < math.inf:
            raise UsageError(f"grace_s is a number of seconds of at least 0, not {grace_s}")
        return self._runtime.stop_procs(self._mesh, self.region.ranks, grace_s)


_OWN = frozenset({"_runtime", "_procs", "_actor", "_cls", "name", "_region", "initialized"})
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
        created: Future[Any],
    ) -> None:
        self._runtime = runtime
        self._procs = procs
        self._actor = actor
        self._cls = cls
        self.name = name
        self._region = region
        self.initialized = created
        """Done when every constructor has returned; failed if one raised."""

    @property
    def region(self) -> Region:
        """Its shape, and the ranks of the spawned mesh that it covers."""
        return self._region

    def __repr__(self) -> str:
        return f"ActorMesh({self.name!r}, {self._cls.__name__}, {self.sizes})"

    def _with_region(self, region: Region) -> ActorMesh:
        return ActorMesh(
            self._runtime, self._procs, self._actor, self.name, self._cls, region, self.initialized
        )

    def __getattr__(self, name: str) -> EndpointRef:
        if name == "_cls" or name.startswith("__"):  # asked for before __init__ ran, or by copy
            raise AttributeError(name)
        if not is_endpoint(self._cls, name):
            raise AttributeError(
                f"{self._cls.__name__} has no endpoint {name!r}; it has "
                + (", ".join(endpoint_names(self._cls)) or "none")
            )
        made = self.__dict__[name] = EndpointRef(self, name)
        return made

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError(f"{self!r} cannot be sent to another process yet")


class EndpointRef:
    """One endpoint of an actor mesh: the ways to call it."""

    def __init__(self, mesh: ActorMesh, name: str) -> None:
        region = mesh.region
        self._mesh = mesh
        self._name = name
        self._what = f"{mesh.name}.{name}"
        self._counts = positional_counts(mesh._cls, name)
        # The whole mesh is known to its members; only a slice must be told to them.
        self._where = None if region == mesh._procs.region else region.pack()
        self._size = len(region)
        self._place: Place | None = None
        if self._size == 1:
            self._place = mesh._runtime.place(mesh._procs._mesh, region.ranks[0])

    def call(self, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """Call it on every rank; the future's value is a ValueMesh of the results."""
        region = self._mesh.region
        return self._send(args, kwargs, lambda values: ValueMesh(region, values))

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on the only rank of the mesh; the future's value is the result.

        Raises:
            ValueError: the mesh has more than one rank: slice it first.
        """
        if self._size != 1:
            raise ValueError(
                f"call_one needs a mesh of one, {self._mesh!r} has {self._size}: slice it"
            )
        link = self._direct(args, kwargs)
        if link is not None:
            future: Future[Any] = Future(self._what, link.driver)
            with contextlib.suppress(LinkClosed):  # its proc is gone: the long way tells why
                link.call_plain(self._mesh._actor, self._name, args, self._where, future)
                return future
        return self._send(args, kwargs, lambda values: values[0])

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Call it on every rank and expect no answer."""
        link = self._direct(args, kwargs)
        if link is not None:
            with contextlib.suppress(LinkClosed):
                link.cast_plain(self._mesh._actor, self._name, args, self._where)
                return
        self._mesh._runtime.cast(self._frame(Kind.CAST, args, kwargs))

    def _direct(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> DirectLink | None:
        """The link for the short way, if this message can take it."""
        place = self._place
        if place is None or kwargs or len(args) not in self._counts or not is_plain(args):
            return None
        return place.direct

    def _send(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], finish: Callable[[list[Any]], Any]
    ) -> Future[Any]:
        return self._mesh._runtime.call(self._frame(Kind.CALL, args, kwargs), finish, self._what)

    def _frame(self, kind: Kind, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Frame:
        mesh = self._mesh
        endpoint_signature(mesh._cls, self._name).bind(None, *args, **kwargs)
        try:
            body, buffers = dumps((self._name, args, kwargs, self._where))
        except Exception as error:
            raise UsageError(f"the arguments of {self._what} cannot be sent: {error}") from error
        return Frame(
            kind,
            body,
            buffers,
            mesh=mesh._procs._mesh,
            actor=mesh._actor,
            ranks=mesh.region.ranks,
        )

"""An endpoint of an actor mesh as its caller holds it: the ways to call it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from slurmmesh.actors.actor import endpoint_signature, positional_counts
from slurmmesh.actors.direct import DirectLink, Place
from slurmmesh.actors.future import Future
from slurmmesh.errors import LinkClosed, UsageError
from slurmmesh.shape import ValueMesh
from slurmmesh.wire.batches import is_plain
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import Frame, Kind

if TYPE_CHECKING:
    from slurmmesh.actors.mesh import ActorMesh


class EndpointRef:
    """One endpoint of an actor mesh: the ways to call it."""

    def __init__(self, mesh: ActorMesh, name: str) -> None:
        region = mesh.region
        self._mesh = mesh
        self._name = name
        self._what = f"{mesh.name}.{name}"
        self._counts = positional_counts(mesh._cls, name)
        # The whole mesh is known to its members; only a slice must be told to them.
        self._where = None if region == mesh._procs.whole else region.pack()
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

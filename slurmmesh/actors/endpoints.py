"""An endpoint of an actor mesh as its caller holds it: the ways to call it."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from slurmmesh.actors.actor import check_arguments, endpoint_signature, positional_counts
from slurmmesh.actors.context import context
from slurmmesh.actors.direct import DirectLink, Place
from slurmmesh.actors.future import Future
from slurmmesh.errors import LinkClosed, UsageError
from slurmmesh.shape import ValueMesh
from slurmmesh.wire.batches import is_plain
from slurmmesh.wire.codec import dumps_to_send
from slurmmesh.wire.frames import Frame, Kind

if TYPE_CHECKING:
    from slurmmesh.actors.mesh import ActorMesh
    from slurmmesh.actors.waits import Asked


class EndpointRef:
    """One endpoint of an actor mesh: the ways to call it.

    All of them send at once, in the order in which they are called, whatever becomes of what they
    return.

    Raises, all of them:
        TypeError: the arguments do not fit.
        UsageError: the arguments cannot be sent.

    Of a mesh that is over futures tell why, with MeshStopped or another SupervisionError;
    ``broadcast``, which has none, raises it.
    """

    def __init__(self, mesh: ActorMesh, name: str, timeout: float | None = None) -> None:
        region = mesh.region
        self._mesh = mesh
        self._name = name
        self._timeout = timeout
        self._what = f"{mesh.name}.{name}"
        self._counts = positional_counts(mesh._cls, name)
        # The whole mesh is known to its members; only a slice must be told to them.
        self._where = None if region == mesh._procs.region else region.pack()
        self._size = len(region)
        self._place: Place | None = None
        self._rank = 0
        if self._size == 1:
            self._rank = region.ranks[0]
            self._place = mesh._runtime.place(mesh._procs._mesh, self._rank)

    def __call__(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Raises TypeError: how it is to be called has not been said."""
        raise TypeError(
            f"{self._what} runs elsewhere: use {self._what}.call(...), or .call_one(...) for one "
            "actor, or .broadcast(...) without an answer"
        )

    def call(self, *args: Any, **kwargs: Any) -> Future[ValueMesh[Any]]:
        """Call it on every rank; the future's value is a ValueMesh of the results."""
        region = self._mesh.region
        return self._send(
            self._mesh.region.ranks, args, kwargs, lambda values: ValueMesh(region, values)
        )

    def call_one(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on the only rank of the mesh; the future's value is the result.

        Raises:
            ValueError: the mesh has more than one rank: slice it first.
        """
        if self._size != 1:
            raise ValueError(
                f"call_one needs a mesh of one, {self._mesh!r} has {self._size}: slice it"
            )
        return self._call_rank(self._rank, self._place, args, kwargs)

    def choose(self, *args: Any, **kwargs: Any) -> Future[Any]:
        """Call it on one rank, picked at random; the future's value is the result.

        The rank that the actor sees (``current_rank()``) is that in the mesh.
        """
        mesh = self._mesh
        rank = mesh.region.global_rank(random.randrange(self._size))
        place = mesh._runtime.place(mesh._procs._mesh, rank)
        return self._call_rank(rank, place, args, kwargs)

    def stream(self, *args: Any, **kwargs: Any) -> Iterator[Future[Any]]:
        """Call it on every rank; futures of the results in the order in which they come.

        What one rank raises is the error of its future alone.
        """
        ranks = self._mesh.region.ranks
        asked = self._asked(ranks)
        frame = self._frame(Kind.CALL, ranks, args, kwargs, asked)
        futures = self._mesh._runtime.stream(frame, self._what, self._timeout)
        if asked is not None:
            for spare, future in enumerate(reversed(futures)):
                future.asked = asked._replace(spare=spare)
        return iter(futures)

    def broadcast(self, *args: Any, **kwargs: Any) -> None:
        """Call it on every rank and expect no answer."""
        link = self._direct(self._place, args, kwargs)
        if link is not None:
            with contextlib.suppress(LinkClosed):
                link.cast_plain(self._mesh._actor, self._name, args, self._where)
                return
        self._mesh._runtime.cast(self._frame(Kind.CAST, self._mesh.region.ranks, args, kwargs))

    def rref(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        """Call it for a tensor that is spread over the mesh. Raises UsageError: there are none."""
        raise UsageError(
            f"{self._what}.rref gives a tensor spread over the mesh, and these are not built yet: "
            "use call() and the tensors of its ValueMesh"
        )

    def options(self, *, timeout: float | None = None) -> EndpointRef:
        """This endpoint with other ways.

        Args:
            timeout: seconds that a call may take. Then its future fails with ``CallTimeout``, which
                names the ranks that have not answered and those that died meanwhile.

        Raises UsageError for what is no number of seconds.
        """
        if timeout is not None and not timeout >= 0:
            raise UsageError(f"a timeout is a number of seconds of at least 0, not {timeout}")
        limit = None if timeout is None or timeout == float("inf") else float(timeout)
        return EndpointRef(self._mesh, self._name, limit)

    def _call_rank(
        self, rank: int, place: Place | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Future[Any]:
        link = None if self._timeout is not None else self._direct(place, args, kwargs)
        if link is not None:
            future: Future[Any] = Future(self._what, link.driver, self._asked((rank,)))
            try:
                link.call_plain(self._mesh._actor, self._name, args, self._where, future)
            except LinkClosed:  # its proc is gone: the long way tells why
                return self._send((rank,), args, kwargs, lambda values: values[0])
            return future
        return self._send((rank,), args, kwargs, lambda values: values[0])

    def _direct(
        self, place: Place | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> DirectLink | None:
        """The link for the short way, if this message can take it."""
        if place is None or kwargs or len(args) not in self._counts or not is_plain(args):
            return None
        return place.direct

    def _send(
        self,
        ranks: Sequence[int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        finish: Callable[[list[Any]], Any],
    ) -> Future[Any]:
        asked = self._asked(ranks)
        frame = self._frame(Kind.CALL, ranks, args, kwargs, asked)
        future = self._mesh._runtime.call(frame, finish, self._what, self._timeout)
        future.asked = asked
        return future

    def _asked(self, ranks: Sequence[int]) -> Asked | None:
        """The call that is about to be made, if an actor makes it."""
        waits = context().waits
        return None if waits is None else waits.ask(self._mesh, self._name, ranks)

    def _frame(
        self,
        kind: Kind,
        ranks: Sequence[int],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        asked: Asked | None = None,
    ) -> Frame:
        mesh = self._mesh
        check_arguments(self._what, endpoint_signature(mesh._cls, self._name), args, kwargs)
        try:
            body, buffers = dumps_to_send((self._name, args, kwargs, self._where))
        except Exception as error:
            raise UsageError(f"the arguments of {self._what} cannot be sent: {error}") from error
        if asked is not None:
            body += asked.mark  # behind the pickle, whose end is known
        return Frame(kind, body, buffers, mesh=mesh._procs._mesh, actor=mesh._actor, ranks=ranks)

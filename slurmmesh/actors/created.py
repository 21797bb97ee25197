"""The future of procs or actors that are being built."""

from __future__ import annotations

from slurmmesh.actors.future import Future
from slurmmesh.actors.hearing import hear
from slurmmesh.errors import ActorError, SupervisionError


class Created(Future[bool]):
    """Whether they are built. Its error counts as heard only when somebody has asked for it.

    Args:
        mesh, actor: that are built; no actor for procs.
    """

    __slots__ = ("_actor", "_mesh")

    def __init__(self, what: str, mesh: int, actor: int = 0) -> None:
        super().__init__(what)
        self._mesh = mesh
        self._actor = actor

    def get(self, timeout: float | None = None) -> bool:
        """See ``Future.get``."""
        try:
            return super().get(timeout)
        except (ActorError, SupervisionError) as error:
            self._hear(error)
            raise

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``Future.exception``."""
        error = super().exception(timeout)
        self._hear(error)
        return error

    def _tell_of(self, error: SupervisionError) -> None:
        """Not yet: nobody may ever look."""

    def _hear(self, error: BaseException | None) -> None:
        if isinstance(error, ActorError):
            hear(error, (self._mesh, error.rank, self._actor))
        elif isinstance(error, SupervisionError):
            hear(error, error.about)

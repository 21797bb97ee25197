"""The future of actors that are being built."""

from __future__ import annotations

from typing import Any

from slurmmesh.actors.future import Future
from slurmmesh.actors.hearing import hear
from slurmmesh.errors import ActorError, SupervisionError


class Created(Future[bool]):
    """Whether actors are built. Its error counts as heard only when somebody has asked for it."""

    __slots__ = ()

    def get(self, timeout: float | None = None) -> bool:
        """See ``Future.get``."""
        try:
            return super().get(timeout)
        except (ActorError, SupervisionError) as error:
            hear(error)
            raise

    result = get

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """See ``Future.exception``."""
        error = super().exception(timeout)
        if isinstance(error, (ActorError, SupervisionError)):
            hear(error)
        return error

    def _tell_of(self, error: Any) -> None:
        """Not yet: nobody may ever look."""

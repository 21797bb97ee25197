"""A future that a coroutine may stand for: where Monarch has an ``async def``."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import Any, TypeVar

from slurmmesh.actors.future import Future

T = TypeVar("T")


class CoroutineFuture(Future[T], Coroutine[Any, Any, T]):
    """What ``source`` becomes, for ``get()`` and ``await`` and also for ``asyncio.run``."""

    __slots__ = ("_steps",)

    def __init__(self, source: Future[T]) -> None:
        super().__init__(source._what, source._driver)
        self._steps: Generator[Any, Any, T] | None = None
        source.add_done_callback(self._take)

    def _take(self, source: Future[T]) -> None:
        try:
            self.set_result(source.get())
        except Exception as error:
            self.set_exception(error)

    def send(self, value: Any) -> Any:
        """Run it to its next step, as an event loop does."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.send(value)

    def throw(self, *error: Any) -> Any:
        """Raise an error where it waits, as an event loop does."""
        if self._steps is None:
            self._steps = self.__await__()
        return self._steps.throw(*error)

    def close(self) -> None:
        """Let go of it, as an event loop does; what was asked for goes on."""
        if self._steps is not None:
            self._steps.close()

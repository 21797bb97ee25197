"""The event loop of an actor: its async endpoints, and those that run beside later messages.

asyncio is loaded when the first of them comes: most actors have none.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any

from slurmmesh.actors.mailbox import Mailbox
from slurmmesh.wire.driver import Driver

if TYPE_CHECKING:
    import asyncio

Concluded = Callable[[Any, "BaseException | None"], Any]
"""Takes what a task returned, or what it raised."""


class Tasks:
    """Runs coroutines in one thread. The loop is made when the first one comes.

    It runs only inside of ``finish``, ``start``, ``turn`` and ``wait_for_mail``.

    Attributes:
        beside: those that run beside the messages, each with the mark of the call it answers.
        main: what is run to its end: no message is taken before.
    """

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self.beside: dict[asyncio.Task[Any], bytes] = {}
        self.main: Coroutine[Any, Any, Any] | None = None

    def finish(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine to its end; returns its result."""
        self.main = coroutine
        return self._made().run_until_complete(coroutine)

    def start(
        self, coroutine: Coroutine[Any, Any, Any], concluded: Concluded, mark: bytes = b""
    ) -> None:
        """Run a coroutine up to where it first waits, and then beside what else runs."""
        from asyncio import CancelledError

        task = self._made().create_task(coroutine)
        self.beside[task] = mark

        def done(task: asyncio.Task[Any]) -> None:
            self.beside.pop(task, None)
            if task.cancelled():
                concluded(None, CancelledError("the endpoint was cancelled"))
            elif (error := task.exception()) is not None:
                concluded(None, error)
            else:
                concluded(task.result(), None)

        task.add_done_callback(done)
        self.turn()

    def turn(self) -> None:
        """Let each task that can go on do so, up to where it next waits."""
        if self._loop is not None:
            self._loop.call_soon(self._loop.stop)
            self._loop.run_forever()

    def wait_for_mail(self, mailbox: Mailbox[Any], driver: Driver | None) -> None:
        """Run the tasks until something is in the mailbox.

        Args:
            driver: of the loop by which it comes, if this thread is to run that loop, too.
        """
        self.finish(_mail(mailbox, driver))

    def cancel(self) -> None:
        """Cancel what runs beside the messages, and wait for it to end."""
        if self.beside:
            self._cancel(set(self.beside))

    def close(self) -> None:
        """Cancel all tasks, those of the user too, and close the loop."""
        if self._loop is None:
            return
        from asyncio import all_tasks

        try:
            self._cancel(all_tasks(self._loop))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        finally:
            self._loop.close()
            self._loop = None

    def _cancel(self, tasks: set[asyncio.Task[Any]]) -> None:
        tasks = set(tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            self.finish(_ended(tasks))

    def _made(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            from asyncio import new_event_loop

            self._loop = new_event_loop()
        return self._loop


@types.coroutine
def _until_mail(mailbox: Mailbox[Any], driver: Driver | None) -> Generator[Any, None, None]:
    from slurmmesh.actors.awaiting import until_done

    yield from until_done(mailbox, driver)


async def _mail(mailbox: Mailbox[Any], driver: Driver | None) -> None:
    await _until_mail(mailbox, driver)


async def _ended(tasks: set[asyncio.Task[Any]]) -> None:
    from asyncio import wait

    await wait(tasks)

"""Doing two things at once where one of them only waits."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def meanwhile(do: Callable[[], object]) -> Iterator[None]:
    """Run ``do`` in a thread while the body runs; both have ended when this does.

    What ``do`` raises is raised then, unless the body has raised something itself.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            do()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="slurmmesh-meanwhile")
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if errors:
        raise errors[0]

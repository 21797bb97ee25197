"""A way out for a process whose output nobody reads: a paused pager, a terminal after Ctrl-S."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator

from slurmmesh.submit.interrupts import Interrupts
from slurmmesh.submit.output import tell

_LOOK_EVERY_S = 0.2
# What the block may take to end by itself once it could.
_GRACE_S = 2.0


@contextlib.contextmanager
def leaves_if_stuck(
    interrupts: Interrupts, may_leave: Callable[[], bool], leave: Callable[[], int]
) -> Iterator[None]:
    """Ends this process if the block goes on after a second interrupt.

    A write that nobody reads goes on after a signal's handler. Once ``may_leave``, which is asked
    often, says so, and 2 seconds later, ``leave`` is called; the process exits with what it
    returns. Both are called in another thread.
    """
    over = threading.Event()

    def watch() -> None:
        while not may_leave() or len(interrupts.received) < 2:
            if over.wait(_LOOK_EVERY_S):
                return
        if not over.wait(_GRACE_S):
            code = leave()
            tell_if_read("left, though not all output could be shown: nobody reads it")
            os._exit(code)

    thread = threading.Thread(target=watch, name="leaves_if_stuck", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()  # it may be leaving


def tell_if_read(text: str) -> None:
    """As ``tell``, without waiting for a reader of stderr."""
    thread = threading.Thread(target=tell, args=(text,), daemon=True)
    thread.start()
    thread.join(_LOOK_EVERY_S)

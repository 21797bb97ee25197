"""The communicators of this process: for a watchdog, an injector, and the interpreter's end."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from slurmmesh.gpu.communicator import Communicator
    from slurmmesh.gpu.engine import Engine


@dataclass(frozen=True)
class Operation:
    """An operation of a communicator.

    Attributes:
        name: ``all_reduce`` and so on; ``group`` for several that go out as one.
        sequence: how many collectives this rank has begun on the communicator, with this one.
            Ranks that agree have the same. ``send`` and ``recv`` do not count.
        since: when it was begun; seconds since 1970.
        peers: ranks of send and recv; empty if all ranks take part.
    """

    name: str
    sequence: int
    since: float
    peers: tuple[int, ...] = ()


Moment = Literal["begins", "ends", "fails"]
Watcher = Callable[["Communicator", Operation, Moment], None]

_log = logging.getLogger(__name__)
_lock = threading.RLock()  # a signal handler may abort at any point
_live: weakref.WeakKeyDictionary[Communicator, Engine] = weakref.WeakKeyDictionary()
_watchers: tuple[Watcher, ...] = ()
_at_exit = False


def live_communicators() -> tuple[Communicator, ...]:
    """The communicators of this process that are neither finalized nor aborted.

    Of each, ``operation`` tells what it waits for, ``async_error()`` what is wrong with it, and
    ``abort(reason)`` ends it, from any thread.
    """
    with _lock:
        return tuple(_live)


def engines() -> tuple[Engine, ...]:
    """What is inside of them."""
    with _lock:
        return tuple(_live.values())


def watch_operations(watcher: Watcher) -> Callable[[], None]:
    """Have ``watcher(communicator, operation, moment)`` called; returns what ends that.

    Moments are ``begins`` (before anything is queued: it may wait, or raise, and then nothing is
    queued), ``ends`` and ``fails`` (what it raises then is logged). It is called by the thread that
    the operation is of.
    """
    global _watchers
    with _lock:
        _watchers = (*_watchers, watcher)

    def stop() -> None:
        global _watchers
        with _lock:
            _watchers = tuple(one for one in _watchers if one is not watcher)

    return stop


def tell(communicator: Communicator, operation: Operation, moment: Moment) -> None:
    """Call the watchers. Raises what they raise when something begins."""
    for watcher in _watchers:
        try:
            watcher(communicator, operation, moment)
        except Exception:
            if moment == "begins":
                raise
            _log.exception("a watcher failed when %s of %r %s", operation, communicator, moment)


def add(communicator: Communicator, engine: Engine) -> None:
    """It is made."""
    global _at_exit
    with _lock:
        _live[communicator] = engine
        if not _at_exit:
            _at_exit = True
            # Finalizers run at exit, too: those of device memory wait for the device. What is
            # registered later runs first, and theirs is registered with the first of them.
            weakref.finalize(tell, int).detach()
            atexit.register(_abort_all)


def remove(communicator: Communicator) -> None:
    """It was finalized or aborted."""
    with _lock:
        _live.pop(communicator, None)


def _abort_all() -> None:
    for communicator in live_communicators():
        with contextlib.suppress(Exception):
            communicator.abort("the interpreter ends")


def _forked() -> None:
    """The parent's communicators are none of the child's."""
    global _lock, _live
    _lock = threading.RLock()
    _live = weakref.WeakKeyDictionary()


os.register_at_fork(after_in_child=_forked)

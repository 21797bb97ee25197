"""Imports that are made once for all procs of a host, and whether a module bears it.

They happen in a process of their own, which the procs are then forked from. What must not be
shared by processes, or be the same in all ranks, makes a module unfit: each proc imports it then.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

from slurmmesh.actors.context import set_process_context
from slurmmesh.actors.reloading import users_modules
from slurmmesh.errors import SupervisionError
from slurmmesh.linux import children

RANKS_OWN = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE"})
"""Variables that procs have and this process does not: who reads them is to be imported there."""

_PERSONAL = {
    "random": ("Random",),
    "numpy.random": ("Generator", "RandomState"),
    "uuid": ("UUID",),
    "tempfile": ("TemporaryDirectory",),
}
"""Classes, by their modules, of what each process should make for itself."""


class NoRank:
    """Stands for the context of a proc where there is none yet."""

    def __getattr__(self, name: str) -> Any:
        raise SupervisionError("this is imported for all ranks of the host: there is no context")


def import_for_all(names: Iterable[str], own: Iterable[str] = ()) -> str:
    """Import modules in this process, which has no thread but this one, nor a child.

    Args:
        own: more variables that each proc has for itself, besides ``RANKS_OWN``.

    Returns why nothing may be forked from it now; empty if all is well. What an import raises
    comes out.
    """
    fds, handlers = _descriptors(), _handlers()
    set_process_context(NoRank())  # type: ignore[arg-type]
    with _watched_environment(RANKS_OWN.union(own)) as read:
        for name in names:
            importlib.import_module(name)
    if read:
        return f"reads {read[0]}"
    if threading.active_count() > 1 or _has_threads():
        return "starts threads"
    if children():
        return "starts processes"
    if _descriptors() - fds:
        return "keeps files, sockets or devices open"
    if _handlers() != handlers:
        return "handles signals"
    if personal := _personal():
        return f"makes {personal}, which would be the same in all ranks"
    gc.collect()
    gc.freeze()
    return ""


def _descriptors() -> set[int]:
    found = set()
    for fd in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # of the listing itself
            os.fstat(fd)
            found.add(fd)
    return found


def _handlers() -> dict[int, Any]:
    return {signum: signal.getsignal(signum) for signum in signal.valid_signals()}


def _has_threads() -> bool:
    """Whether there are threads of libraries that they do not end themselves before a fork."""
    if len(os.listdir("/proc/self/task")) > 1:
        pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return len(os.listdir("/proc/self/task")) > 1


@contextlib.contextmanager
def _watched_environment(own: frozenset[str]) -> Iterator[list[str]]:
    """Notes who reads what is each rank's own; ``os.environ`` stays the object that it is."""
    read: list[str] = []
    plain: Any = type(os.environ)

    class Watched(plain):  # type: ignore[misc]
        def __getitem__(self, key: str) -> str:
            if key in own:
                read.append(key)
            value: str = super().__getitem__(key)
            return value

        def __iter__(self) -> Iterator[str]:
            read.append("the whole environment")
            names: Iterator[str] = super().__iter__()
            return names

    os.environ.__class__ = Watched
    try:
        yield read
    finally:
        os.environ.__class__ = plain


def _personal() -> str:
    """The name of something of that kind in a module of the user's."""
    kinds: list[type] = [NoRank]
    for home, names in _PERSONAL.items():
        if home in sys.modules:
            kinds += [getattr(sys.modules[home], name) for name in names]
    for module in users_modules():
        for name, value in list(vars(sys.modules[module]).items()):
            if isinstance(value, tuple(kinds)):
                return f"{module}.{name}"
    return ""

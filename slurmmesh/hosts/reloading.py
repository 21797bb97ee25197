"""Reloading edited modules in the procs of meshes: one call to each of their actors."""

from __future__ import annotations

import functools
import itertools
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

from slurmmesh.actors.future import Future
from slurmmesh.actors.reloading import RELOAD
from slurmmesh.errors import SupervisionError
from slurmmesh.hosts.meshes import MeshRecord
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import Frame, Kind

Call = Callable[[Frame, Callable[[list[Any]], Any], str], Future[Any]]
"""See ``Runtime.call``."""

_requests = itertools.count(1)


def reload_modules(
    mesh: MeshRecord,
    ranks: Sequence[int],
    modules: tuple[str, ...],
    call: Call,
    finish: Callable[[list[Any]], Any],
) -> Future[Any]:
    """Reload modules in these ranks, but for those that are gone; see ``ProcMesh.reload``."""
    found: dict[int, tuple[str, ...]] = dict.fromkeys(ranks, ())
    future: Future[Any] = Future(f"reloading modules of {mesh.name!r}")
    calls = _call_actors(mesh, ranks, modules, call)
    missing = len(calls)
    lock = threading.Lock()

    def one_done(here: Sequence[int], done: Future[list[Any]]) -> None:
        nonlocal missing
        error = done.exception(0)
        if error is not None:
            future.set_exception(error)
            return
        with lock:
            found.update(zip(here, done.get(0), strict=True))
            missing -= 1
            if missing:
                return
        future.set_result(finish(list(found.values())))

    if not calls:
        future.set_result(finish(list(found.values())))
    for here, each in calls:
        each.add_done_callback(functools.partial(one_done, here))
    return future


def reload_on_hosts(
    meshes: Iterable[MeshRecord], hosts: Collection[int], call: Call
) -> tuple[str, ...]:
    """Reload what was edited in all procs on these hosts, and wait for it; returns the names.

    Actors that are gone, or go meanwhile, have nothing to reload.

    Raises:
        ActorError: a module cannot be reloaded.
    """
    calls = [
        each
        for mesh in meshes
        if mesh.over is None
        for each in _call_actors(
            mesh, [r for r, record in enumerate(mesh.ranks) if record.host in hosts], (), call
        )
    ]
    found: dict[str, None] = {}
    for _, each in calls:
        try:
            for names in each.get():
                found.update(dict.fromkeys(names))
        except SupervisionError:
            continue
    return tuple(found)


def _call_actors(
    mesh: MeshRecord, ranks: Sequence[int], modules: tuple[str, ...], call: Call
) -> list[tuple[list[int], Future[list[Any]]]]:
    """Ask each actor on these ranks; whichever of a proc comes first does it for all of it."""
    request = os.getpid(), next(_requests)
    body, _ = dumps((RELOAD, (request, modules), {}, None))
    among = set(ranks)
    calls = []
    for frame, _what in list(mesh.created):
        here = [rank for rank in frame.ranks if rank in among and not mesh.ranks[rank].gone]
        if here:
            asked = Frame(Kind.CALL, body, (), mesh=mesh.id, actor=frame.actor, ranks=tuple(here))
            calls.append((here, call(asked, list, f"reloading modules of {mesh.name!r}")))
    return calls

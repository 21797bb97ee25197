"""Who has spawned what, in the controller: meshes and actors end with who spawned them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import replace

from slurmmesh.actors.addresses import CONTROLLER, ProcessId
from slurmmesh.actors.calls import CallBook
from slurmmesh.actors.future import Future, all_done
from slurmmesh.actors.owners import GRACE_S, Owner
from slurmmesh.actors.supervising import StopActor, order
from slurmmesh.errors import MeshStopped
from slurmmesh.hosts.lifecycle import Lifecycle
from slurmmesh.hosts.meshes import MeshRecord
from slurmmesh.wire.frames import STREAM, Frame

_Child = tuple[int, "MeshRecord | None", int, int]
"""The actor that owns it, the record if it is a mesh, the mesh, and the actor if it is one."""


class Children:
    """Keeps the book of children. Safe to use from any thread.

    Args:
        lock: guards the records of meshes.
        stop_procs, stop_actors: of the runtime.
    """

    def __init__(
        self,
        lock: threading.RLock,
        life: Lifecycle,
        book: CallBook,
        stop_procs: Callable[[int, Sequence[int], float], Future[None]],
        stop_actors: Callable[[int, int, Sequence[int]], Future[None]],
    ) -> None:
        self._lock = lock
        self._life = life
        self._book = book
        self._stop_procs = stop_procs
        self._stop_actors = stop_actors
        self._by_process: dict[ProcessId, list[_Child]] = {}

    def new_mesh(self, mesh: MeshRecord) -> None:
        """A proc mesh is about to be spawned. Raises MeshStopped if its owner is gone."""
        self._add(mesh.owner, mesh, mesh.id, 0)

    def new_actor(self, mesh: int, actor: int, owner: Owner) -> None:
        """An actor mesh is about to be. Raises MeshStopped if its owner is gone."""
        self._add(owner, None, mesh, actor)

    def _add(self, owner: Owner, record: MeshRecord | None, mesh: int, actor: int) -> None:
        if owner.process == CONTROLLER and not owner.actor:
            return
        with self._lock:
            if not self.lives(owner):
                raise MeshStopped(f"who spawns here is gone: {owner}")
            children = self._by_process.setdefault(owner.process, [])
            children.append((owner.actor, record, mesh, actor))

    def lives(self, owner: Owner) -> bool:
        """Whether an owner is there."""
        process = owner.process
        if process == CONTROLLER:
            return True
        mesh = self._life.meshes.get(process.mesh)
        if mesh is None:
            return False
        rank = mesh.ranks[process.rank]
        return not rank.gone and rank.incarnation == process.incarnation

    def end_owned(self, owner: Owner, grace_s: float = GRACE_S) -> Future[None]:
        """See ``Runtime.end_owned``."""
        return self._end(owner.process, {owner.actor}, grace_s)

    def process_ended(self, process: ProcessId) -> None:
        """A proc is gone, and with it end the children of all its actors."""
        with self._lock:
            actors = {actor for actor, *_ in self._by_process.get(process, ())}
        if actors:
            self._end(process, actors, GRACE_S)

    def _end(self, process: ProcessId, actors: set[int], grace_s: float) -> Future[None]:
        with self._lock:
            children = self._by_process.pop(process, [])
            ending = [child for child in children if child[0] in actors]
            if left := [child for child in children if child[0] not in actors]:
                self._by_process[process] = left
        meshes = {mesh for _, record, mesh, _ in ending if record is not None}
        futures = []
        for _, record, mesh, actor in reversed(ending):  # the last spawned first
            if record is not None:
                futures.append(self._stop_procs(mesh, range(len(record.ranks)), grace_s))
            elif mesh not in meshes:
                futures.append(self._stop_actors(mesh, actor, ()))
        return all_done(futures, "ending what an actor spawned")

    def forget(self, mesh: MeshRecord) -> None:
        """A mesh is over and gone, and with it the actors that were spawned on it."""
        self._drop(lambda child: child[2] == mesh.id)

    def _drop(self, is_over: Callable[[_Child], bool]) -> None:
        with self._lock:
            for process, children in list(self._by_process.items()):
                left = [child for child in children if not is_over(child)]
                if left:
                    self._by_process[process] = left
                else:
                    del self._by_process[process]

    def stop_actors(self, mesh: MeshRecord, actor: int, ranks: Sequence[int]) -> Future[None]:
        """See ``Runtime.stop_actors``; no ranks: all that it has."""
        with self._lock:
            spawned = mesh.spawned.get(actor)
            ending = (
                tuple(r for r in ranks or spawned.ranks if r in spawned.ranks) if spawned else ()
            )
            if spawned:
                spawned.ranks.difference_update(ending)
                if not spawned.ranks:
                    del mesh.spawned[actor]
                    self._drop(lambda child: child[2:] == (mesh.id, actor))
            mesh.created = [
                made for each in mesh.created if (made := _without(each, actor, ending))
            ]
            if not ending or mesh.over is not None:
                return all_done([], "")
            return self.tell(mesh, order(StopActor(), mesh.id, actor, ending))

    def tell(self, mesh: MeshRecord, frame: Frame) -> Future[None]:
        """Send an order to actors; done when each has obeyed, or is gone. With the lock held."""
        futures: list[Future[None]] = [Future() for _ in frame.ranks]
        waiting = iter(futures)
        call = self._book.open_stream(
            mesh.id, frame.ranks, lambda _rank, _value, _error: next(waiting).set_result(None), {}
        )
        self._life.post(mesh, replace(frame, call=call, flags=frame.flags | STREAM))
        return all_done(futures, "an order to actors")


def _without(
    created: tuple[Frame, str], actor: int, ending: Sequence[int]
) -> tuple[Frame, str] | None:
    """What still is to be built again when ranks are restarted."""
    frame, name = created
    if frame.actor != actor:
        return created
    ranks = tuple(rank for rank in frame.ranks if rank not in ending)
    return (replace(frame, ranks=ranks), name) if ranks else None

"""Failures climb: from a mesh to the actor that spawned it, and on up to the user's program.

The owner's ``__supervise__`` decides. If it does not deal with the matter the owner fails as well,
which its proc tells as any failure of an actor, so that the next owner up has it.

At the root there is no actor. There a failure is *heard* if a call of the program got its error:
one that was open, or one made within ``LISTEN_S`` seconds. Nobody is told twice: the hook is for
failures that nobody heard of, of procs that have no subscriber (``ProcMesh.on_event``). Ranks that
failed together are heard of together: a call to all of them has the error of one.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

from slurmmesh.actors.addresses import ProcessId
from slurmmesh.actors.hearing import About
from slurmmesh.actors.owners import ROOT, Owner
from slurmmesh.actors.supervising import MeshFailure, RankFailure, Supervise, order
from slurmmesh.errors import EXIT_PROGRAM_FAILED, ExitCause, HostLost, MeshStopped, ProcDied
from slurmmesh.hosts.endings import end_program, unhandled_fault_hook
from slurmmesh.hosts.meshes import MeshRecord
from slurmmesh.wire.frames import Frame
from slurmmesh.wire.reactor import Reactor, print_error

GATHER_S = 0.1
"""What else fails within so many seconds of a mesh is told together."""
LISTEN_S = 1.0
"""So long somebody may hear of a failure from a call before the program is ended for it."""
_MAX_HEARD = 4096


class Failures:
    """Gathers failures and tells owners. In the controller's loop, but for ``hear``.

    Args:
        lock: guards the records of meshes.
        lives: whether an owner is there.
        tell: sends an order to actors of a mesh; None for the mesh: of the program's own process.
        is_over: whether the job is being ended: nothing is news any more.
    """

    def __init__(
        self,
        reactor: Reactor,
        lock: threading.RLock,
        meshes: Mapping[int, MeshRecord],
        lives: Callable[[Owner], bool],
        tell: Callable[[MeshRecord | None, Frame], Any],
        is_over: Callable[[], bool],
    ) -> None:
        self._reactor = reactor
        self._lock = lock
        self._meshes = meshes
        self._lives = lives
        self._tell = tell
        self._is_over = is_over
        self._gathered: dict[tuple[int, int], list[RankFailure]] = {}
        self._own: dict[tuple[int, int], tuple[str, Owner]] = {}
        self._waiting: dict[tuple[int, int], list[set[Hashable]]] = {}
        self._heard: dict[Hashable, None] = {}
        self._heard_lock = threading.RLock()

    # -- what fails -----------------------------------------------------------------------------

    def procs_died(self, mesh: MeshRecord, causes: Sequence[ExitCause]) -> None:
        """Procs are gone for good: the actor meshes in them have failed there."""
        for cause in causes:
            here = [n for n, spawned in mesh.spawned.items() if cause.rank in spawned.ranks]
            for actor in here or [0]:
                self._gather(mesh.id, actor, RankFailure.of(cause))

    def actor_failed(self, process: ProcessId, actor: int, failure: RankFailure) -> None:
        """A proc tells that an actor in it has failed."""
        mesh = self._meshes.get(process.mesh)
        if mesh is None or not self._lives(Owner(process)):
            return
        if failure.is_new and process.incarnation and mesh.supervisor.spec is not None:
            return  # in a restart that counts as one more death, see Lifecycle
        spawned = mesh.spawned.get(actor)
        if spawned is not None and failure.rank in spawned.ranks:
            self._gather(process.mesh, actor, failure)

    def own_actor_failed(
        self, mesh: int, actor: int, name: str, owner: Owner, failure: RankFailure
    ) -> None:
        """An actor in the program's own process has failed. From any thread."""
        self._own[mesh, actor] = name, owner
        self._reactor.call_soon(self._gather, mesh, actor, failure)

    def hear(self, error: BaseException, about: About | None) -> None:
        """A call of the program got this error. From any thread."""
        key: Hashable = about
        if isinstance(error, ProcDied):
            key = error.cause
        elif isinstance(error, HostLost):
            key = error.host
        if key is not None:
            with self._heard_lock:
                self._heard[key] = None
                if len(self._heard) > _MAX_HEARD:
                    del self._heard[next(iter(self._heard))]

    # -- who is told ----------------------------------------------------------------------------

    def _gather(self, mesh: int, actor: int, failure: RankFailure) -> None:
        gathered = self._gathered.get((mesh, actor))
        if gathered is not None:
            gathered.append(failure)
            return
        self._gathered[mesh, actor] = [failure]
        self._reactor.call_later(GATHER_S, lambda: self._deliver(mesh, actor))

    def _deliver(self, mesh: int, actor: int) -> None:
        ranks = sorted(self._gathered.pop((mesh, actor)), key=lambda failure: failure.rank)
        record = self._meshes.get(mesh)
        if self._is_over() or (record is not None and isinstance(record.over, MeshStopped)):
            return
        own = self._own.pop((mesh, actor), None)
        if own is not None:
            name, owner = own
        elif record is None:
            return  # it is forgotten meanwhile
        elif spawned := record.spawned.get(actor):
            name, owner = spawned.name, spawned.owner
        elif actor and all(failure.cause is None for failure in ranks):
            return  # it was stopped meanwhile
        else:
            name, owner = record.name, record.owner
        self._climb(mesh, actor, MeshFailure(name, tuple(ranks)), owner)

    def _climb(self, mesh: int, actor: int, failure: MeshFailure, owner: Owner) -> None:
        if owner == ROOT:
            keys = {key for rank in failure.ranks for key in _keys(mesh, actor, rank)}
            waiting = self._waiting.setdefault((mesh, actor), [])
            waiting.append(keys)

            def arrived() -> None:
                heard = self._is_heard(waiting)
                waiting.remove(keys)
                if not waiting:
                    self._waiting.pop((mesh, actor), None)
                if not heard:
                    self._arrived(mesh, failure)

            self._reactor.call_later(LISTEN_S - GATHER_S, arrived)
        elif not self._lives(owner):
            return  # it ends, and what it owns with it; its own owner is told of that
        elif owner.actor:
            process = owner.process
            frame = order(Supervise(failure), process.mesh, owner.actor, (process.rank,))
            with self._lock:
                self._tell(self._meshes.get(process.mesh), frame)
        else:  # a thread of the user's spawned it, outside of any actor
            self._climb(mesh, actor, failure, self._meshes[owner.process.mesh].owner)

    def _is_heard(self, waiting: Sequence[set[Hashable]]) -> bool:
        """Whether somebody heard of one of these failures of a mesh, and thus of all of them."""
        with self._heard_lock:
            if not any(key in self._heard for keys in waiting for key in keys):
                return False
            for keys in waiting:
                self._heard.update(dict.fromkeys(keys))
            return True

    def _arrived(self, mesh: int, failure: MeshFailure) -> None:
        """Nobody is left to decide."""
        record = self._meshes.get(mesh)
        if self._is_over() or (record is not None and isinstance(record.over, MeshStopped)):
            return
        died = any(rank.cause is not None for rank in failure.ranks)
        if died and record is not None and record.subscribers:
            return
        threading.Thread(target=_call_hook, args=(failure,), name="slurmmesh-fault").start()


def _keys(mesh: int, actor: int, rank: RankFailure) -> list[Hashable]:
    """By what errors such a failure is heard of."""
    if rank.cause is None:
        return [(mesh, rank.rank, actor)]
    return [rank.cause, (mesh, -1, 0), *([rank.host] if rank.cause.kind == "host_lost" else [])]


def _call_hook(failure: MeshFailure) -> None:
    package: Any = sys.modules.get("slurmmesh")
    hook = getattr(package, "unhandled_fault_hook", unhandled_fault_hook)
    try:
        hook(failure)
    except SystemExit as error:
        end_program(error.code if isinstance(error.code, int) else EXIT_PROGRAM_FAILED)
    except BaseException:  # it has not dealt with the matter either
        print_error()
        unhandled_fault_hook(failure)

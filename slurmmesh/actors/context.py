"""Who am I: the context of the actor, proc or controller that asks."""

from __future__ import annotations

import contextvars
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from slurmmesh.shape import Extent, Point

if TYPE_CHECKING:
    from slurmmesh.actors.waits import Waits
    from slurmmesh.wire.identity import Credentials


_NOWHERE = Point(0, Extent((), ()))


@dataclass(frozen=True)
class ActorInstance:
    """The actor that runs.

    Attributes:
        name: that it was spawned with; empty outside of an actor.
        rank: its place in the mesh as it was spawned, whatever slice was called.
        number: of the actor within its proc mesh; 0 outside of an actor.
    """

    name: str = ""
    rank: Point = _NOWHERE
    number: int = 0


@dataclass(frozen=True)
class Context:
    """Where the code that asks is running.

    Attributes:
        message_rank: rank and coordinates, relative to the mesh or slice that was called.
        actor_instance: the actor that was called.
        mesh: name of the proc mesh; empty in the controller.
        proc_rank: rank within the whole proc mesh, whatever slice was called.
        host: name of the host.
        host_address: address under which other hosts of the job reach this one.
        incarnation: how often this rank has been restarted, 0 at first.
        job_folder: the job's folder, or None when there is no job.
        credentials: the host's certificate and key, to prove that one belongs to this job.
        waits: of the actor; None outside of one.
    """

    message_rank: Point = _NOWHERE
    actor_instance: ActorInstance = ActorInstance()
    mesh: str = ""
    proc_rank: int = 0
    host: str = ""
    host_address: str = "127.0.0.1"
    incarnation: int = 0
    job_folder: Path | None = None
    credentials: Credentials | None = None
    waits: Waits | None = None


_OUTSIDE = Context()
_current: contextvars.ContextVar[Context] = contextvars.ContextVar("slurmmesh_context")
_process_wide = _OUTSIDE


def set_process_context(context: Context) -> None:
    """Set what threads without a context of their own see. For the main loop of a proc."""
    global _process_wide
    _process_wide = context


enter_context = _current.set
"""Sets the context of the running endpoint. For the main loop of a proc."""


def context() -> Context:
    """The context of the running endpoint, or of the process outside of one."""
    return _current.get(_process_wide)


def current_rank() -> Point:
    """Rank and coordinates of the running actor within the mesh or slice that was called."""
    return context().message_rank


def current_size() -> dict[str, int]:
    """Sizes by dimension of the mesh or slice that was called."""
    return dict(context().message_rank.extent)


def current_actor_name() -> str:
    """Name of the running actor; empty outside of one."""
    return context().actor_instance.name

"""The message that has an actor built: who it is, and behind that what it is made of.

What it is made of may be impossible to load where it is to live, for want of a module there. Who
it is can always be told.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from slurmmesh.shape import Region
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame

if TYPE_CHECKING:
    from slurmmesh.actors.actor import Actor


class CreateActor(NamedTuple):
    """Who is to be built. ``cls``: as people name it; ``region``: of all its mesh."""

    name: str
    cls: str
    region: Region


def packed(
    name: str, cls: type[Actor], args: tuple[Any, ...], kwargs: dict[str, Any], region: Region
) -> tuple[bytes, list[memoryview]]:
    """Body and buffers of the message. Raises as ``dumps``."""
    who = CreateActor(name, f"{cls.__module__}.{cls.__qualname__}", region)
    body, buffers = dumps((cls, args, kwargs))
    return pickle.dumps(who, protocol=5) + body, buffers


def unpacked(frame: Frame) -> tuple[CreateActor, Callable[[], Actor]]:
    """Who is to be built, and what builds it.

    That raises ImportError if class or arguments cannot be loaded, else what the constructor does.
    """
    stream = io.BytesIO(frame.body)
    who: CreateActor = pickle.load(stream)
    made_of = memoryview(frame.body)[stream.tell() :]

    def build() -> Actor:
        try:
            cls, args, kwargs = loads(made_of, frame.buffers)
        except Exception as error:  # of the user's modules, which may raise anything
            raise ImportError(
                f"{who.cls}, or what it is to be built with, cannot be loaded here: "
                f"{type(error).__name__}: {error}"
            ) from error
        actor: Actor = cls(*args, **kwargs)
        return actor

    return who, build

"""What a user writes: a class derived from :class:`Actor` with methods marked ``@endpoint``."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

_MARK = "__slurmmesh_endpoint__"
F = TypeVar("F", bound=Callable[..., Any])
_signatures: dict[tuple[type, str], inspect.Signature] = {}


class Actor:
    """Base of all actors.

    Each member of an actor mesh is one instance in one proc. It handles one message at a time,
    in the order each sender sent them. A class may mix sync and async endpoints.
    """

    def __cleanup__(self, error: BaseException | None) -> None:
        """Runs when the actor is stopped; ``error`` is what ended it, or None. Override at will."""


def endpoint(method: F) -> F:
    """Mark a method of an actor as callable from other processes."""
    setattr(method, _MARK, True)
    return method


def is_endpoint(cls: type, name: str) -> bool:
    """Whether ``cls`` has an endpoint of that name."""
    return getattr(getattr(cls, name, None), _MARK, False) is True


def endpoint_names(cls: type) -> list[str]:
    """The names of all endpoints of ``cls``, sorted."""
    return [name for name in dir(cls) if is_endpoint(cls, name)]


def endpoint_signature(cls: type, name: str) -> inspect.Signature:
    """The signature of a method of an actor class, ``self`` included."""
    try:
        return _signatures[cls, name]
    except KeyError:
        return _signatures.setdefault((cls, name), inspect.signature(getattr(cls, name)))

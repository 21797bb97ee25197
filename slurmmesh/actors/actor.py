"""What a user writes: a class derived from :class:`Actor` with methods marked ``@endpoint``."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from slurmmesh.actors.supervising import MeshFailure
from slurmmesh.errors import UsageError

_MARK = "__slurmmesh_endpoint__"
F = TypeVar("F", bound=Callable[..., Any])
_signatures: dict[tuple[type, str], inspect.Signature] = {}


@dataclass(frozen=True)
class EndpointOptions:
    """How an endpoint is run.

    Attributes:
        explicit_response_port: it gets the port to answer on before its arguments, and answers
            there, once, whenever it likes; what it returns counts for nothing.
        concurrent: it is async and runs beside later messages.
        propagate: of the shapes of its results, for tensors spread over a mesh.
    """

    explicit_response_port: bool = False
    concurrent: bool = False
    propagate: Any = None


class Actor:
    """Base of all actors.

    Each member of an actor mesh is one instance in one proc. It handles one message at a time,
    in the order each sender sent them. A class may mix sync and async endpoints.
    """

    @functools.cached_property
    def logger(self) -> logging.Logger:
        """The logger named like its class."""
        return logging.getLogger(type(self).__name__)

    def __supervise__(self, failure: MeshFailure) -> bool:
        """Runs when ranks of a mesh that this actor spawned have failed. Override at will.

        True: the matter is dealt with. Otherwise, or if it raises, this actor fails as well, and
        its own owner is told. It runs between two messages, before those that wait.
        """
        return False

    def __cleanup__(self, error: BaseException | None) -> None:
        """Runs when the actor is stopped; ``error`` is what ended it, or None. Override at will."""


@overload
def endpoint(method: F) -> F: ...


@overload
def endpoint(
    *, explicit_response_port: bool = False, propagate: Any = None, instrument: bool = True
) -> Callable[[F], F]: ...


def endpoint(
    method: Any = None,
    *,
    explicit_response_port: bool = False,
    propagate: Any = None,
    instrument: bool = True,
) -> Any:
    """Mark a method of an actor as callable from other processes.

    Args:
        explicit_response_port: the method gets a ``Port`` before its arguments and sends its
            answer there, now or later, instead of returning it.
        propagate: kept for tensors spread over a mesh; of no use otherwise.
        instrument: taken from Monarch; all endpoints are told of in the same way.

    Raises:
        TypeError: it is no method, or has no place for the port.
    """
    options = EndpointOptions(explicit_response_port, propagate=propagate)
    return _marked(method, options)


@overload
def concurrent_endpoint(method: F) -> F: ...


@overload
def concurrent_endpoint(
    *, explicit_response_port: bool = False, propagate: Any = None, instrument: bool = True
) -> Callable[[F], F]: ...


def concurrent_endpoint(
    method: Any = None,
    *,
    explicit_response_port: bool = False,
    propagate: Any = None,
    instrument: bool = True,
) -> Any:
    """Mark an async method as an endpoint that runs beside the messages after it.

    Bodies begin in the order of their messages, each at the latest when the actor takes the next
    message; they run on the actor's event loop in turns. What still runs when the actor stops is
    cancelled before ``__cleanup__``.

    Args: as of ``endpoint``.

    Raises:
        TypeError: as ``endpoint`` does.
        UsageError: the method is not ``async``, or is an endpoint already.
    """
    options = EndpointOptions(explicit_response_port, concurrent=True, propagate=propagate)
    return _marked(method, options)


def _marked(method: Any, options: EndpointOptions) -> Any:
    """``method``, marked; without one what marks it: the decorator was used with arguments."""
    if method is None:
        return lambda method: _marked(method, options)
    if not callable(method):
        raise TypeError(f"an endpoint is a method, not {method!r}")
    if options.concurrent and not inspect.iscoroutinefunction(method):
        raise UsageError(f"{method.__qualname__}: a concurrent endpoint is an async method")
    if options.concurrent and hasattr(method, _MARK):
        raise UsageError(
            f"{method.__qualname__}: give options to @concurrent_endpoint instead of @endpoint"
        )
    if options.explicit_response_port:
        _without_port(inspect.signature(method), method.__qualname__)
    setattr(method, _MARK, options)
    return method


def endpoint_options(cls: type, name: str) -> EndpointOptions:
    """How an endpoint of ``cls`` is run. AttributeError if there is none of that name."""
    options = getattr(getattr(cls, name, None), _MARK, None)
    if not isinstance(options, EndpointOptions):
        raise AttributeError(f"{cls.__name__} has no endpoint {name!r}")
    return options


def is_endpoint(cls: type, name: str) -> bool:
    """Whether ``cls`` has an endpoint of that name."""
    return isinstance(getattr(getattr(cls, name, None), _MARK, None), EndpointOptions)


def endpoint_names(cls: type) -> list[str]:
    """The names of all endpoints of ``cls``, sorted."""
    return [name for name in dir(cls) if is_endpoint(cls, name)]


def endpoint_signature(cls: type, name: str) -> inspect.Signature:
    """What callers give to a method of an actor class, after ``self``; no response port."""
    try:
        return _signatures[cls, name]
    except KeyError:
        signature = inspect.signature(getattr(cls, name))
        if is_endpoint(cls, name) and endpoint_options(cls, name).explicit_response_port:
            signature = _without_port(signature, name)
        return _signatures.setdefault((cls, name), signature)


def check_arguments(
    what: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    """TypeError, which names ``what`` is called, if the arguments do not fit a method."""
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{what}: {error}") from None


def _without_port(signature: inspect.Signature, name: str) -> inspect.Signature:
    """Without the parameter after ``self``. TypeError if there is none."""
    own, port, *others = [*signature.parameters.values(), None, None]
    if own is None or port is None or port.kind not in _BY_POSITION:
        raise TypeError(f"{name}: an explicit_response_port needs a parameter for it after self")
    if port.kind is inspect.Parameter.VAR_POSITIONAL:
        return signature
    return signature.replace(parameters=[own, *(other for other in others if other is not None)])


_BY_POSITION = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
)


def positional_counts(cls: type, name: str) -> range:
    """How many arguments without names an endpoint takes, where a count tells all; else empty."""
    kinds = inspect.Parameter
    low = high = 0
    for parameter in list(endpoint_signature(cls, name).parameters.values())[1:]:
        if parameter.kind not in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD):
            return range(0)
        high += 1
        low += parameter.default is kinds.empty
    return range(low, high + 1)

"""An exception on its way to another process: the object where that works, its text always."""

from __future__ import annotations

import io
import pickle
import traceback
import types
from dataclasses import dataclass
from typing import Any

import cloudpickle

from slurmmesh.errors import ActorError, SupervisionError
from slurmmesh.wire.codec import dumps
from slurmmesh.wire.frames import Frame, Kind

MAX_SUMMARY = 500
"""Characters of the one line that tells what happened."""
MAX_TEXT = 64 << 10
"""Characters of a traceback that travel; of a longer one the middle is left out."""
MAX_PICKLED = 16 << 20
"""Bytes of an exception that travels as an object; of a larger one only the text does."""

_RUNTIME = ("slurmmesh.actors.", "asyncio.")
_HEAP_TYPE = 1 << 9  # set in the flags of a class that Python code made


@dataclass(frozen=True)
class Failure:
    """What became of an exception that goes to another process.

    The traceback is text, with causes, contexts, notes and the members of groups in it. It begins
    with the user's code.

    Attributes:
        name: of the exception's class, with its module.
        summary: class and first line of its text.
        formatted: the traceback.
        pickled: the exception itself; empty if it cannot be pickled.
        actor, rank, host: where it was raised; no actor if outside of one.
        fatal: not the user's endpoint raised, the actor or its proc is gone.
        itself: to be raised as it is, not wrapped (``Port.exception``).
    """

    name: str
    summary: str
    formatted: str
    pickled: bytes
    actor: str
    rank: int
    host: str
    fatal: bool = False
    itself: bool = False

    @classmethod
    def of(
        cls,
        error: BaseException,
        *,
        actor: str,
        rank: int,
        host: str,
        fatal: bool = False,
        itself: bool = False,
    ) -> Failure:
        """Describe ``error``, whatever it does when it is printed or pickled."""
        name = _name(type(error))
        try:
            began = _outside_of_runtime(error.__traceback__)
            story = traceback.TracebackException(type(error), error, began, compact=True)
            text, formatted = str(story), "".join(story.format())
        except Exception as trouble:
            text, formatted = f"(no text: telling it raised {_name(type(trouble))})", name
        first = text.strip().split("\n", 1)[0]
        summary = _shortened(f"{name}: {first}" if first else name, MAX_SUMMARY)
        formatted = _shortened(formatted, MAX_TEXT)
        return cls(name, summary, formatted, _pickled(error), actor, rank, host, fatal, itself)

    def rebuild(self) -> Exception:
        """What to raise at the receiver.

        An ``ActorError`` with the original where it can be rebuilt here. The original itself if
        that was asked for; of a fatal failure that, or a ``SupervisionError`` with its text.
        """
        original = self._original()
        if (self.fatal or self.itself) and isinstance(original, Exception):
            return original
        if self.fatal:
            return SupervisionError(f"{self.summary}\n{self.formatted}")
        who = f"{self.actor!r} rank {self.rank} on {self.host}" if self.actor else "the sender"
        # Not its cause as well: its text is in the message, and would double at each actor.
        return ActorError(
            f"{who} raised {self.summary}\nremote traceback:\n{self.formatted}",
            exception=original,
            exception_type=self.name,
            exception_formatted=self.formatted,
            actor=self.actor,
            rank=self.rank,
            host=self.host,
        )

    def _original(self) -> BaseException | None:
        if not self.pickled:
            return None
        try:
            loaded = pickle.loads(self.pickled)
        except KeyboardInterrupt:
            raise
        except BaseException:  # its class is not importable here, or its own code raised
            return None
        return loaded if isinstance(loaded, BaseException) else None


def refusal(request: Frame, rank: int, host: str, error: Exception) -> Frame:
    """The answer to a request that reaches no actor, on behalf of the rank that it was for."""
    body, _ = dumps(Failure.of(error, actor="", rank=rank, host=host, fatal=True))
    return Frame(Kind.ERROR, body, (), request.call, request.mesh, request.actor, (rank,))


def _name(cls: type) -> str:
    """As a traceback names a class."""
    if cls.__module__ in ("builtins", "__main__"):
        return cls.__qualname__
    return f"{cls.__module__}.{cls.__qualname__}"


def _outside_of_runtime(began: types.TracebackType | None) -> types.TracebackType | None:
    """The traceback from where it leaves what runs endpoints; all the same its last frame."""
    while began is not None and began.tb_next is not None:
        if not began.tb_frame.f_globals.get("__name__", "").startswith(_RUNTIME):
            break
        began = began.tb_next
    return began


def _shortened(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]}\n... {len(text) - 2 * half} characters left out ...\n{text[-half:]}"


def _pickled(error: BaseException) -> bytes:
    stream = io.BytesIO()
    try:
        _Pickler(stream, protocol=5).dump(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # what it holds cannot be pickled, or runs code that raises anything
        return b""
    return stream.getvalue() if stream.tell() <= MAX_PICKLED else b""


class _Pickler(cloudpickle.Pickler):
    """cloudpickle (classes of a script travel by value) that takes exceptions apart itself.

    Python makes a new exception by calling its class with ``args``, which are what the class
    gave its base: wrong for each class whose constructor takes anything else.
    """

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, BaseException) and _is_reduced_by_python(type(obj)):
            reduced: Any = obj.__reduce__()
            if reduced[0] is type(obj):
                return _rebuild_exception, tuple(reduced)
        return super().reducer_override(obj)


def _is_reduced_by_python(cls: type[BaseException]) -> bool:
    """Whether the class does not say itself how it is pickled."""
    return (
        isinstance(cls.__reduce__, types.MethodDescriptorType)
        and cls.__reduce_ex__ is object.__reduce_ex__
    )


def _rebuild_exception(
    cls: type[BaseException], arguments: tuple[Any, ...], state: Any = None
) -> BaseException:
    """An exception as it was, without running its constructor again."""
    base: Any = next(each for each in cls.__mro__ if not each.__flags__ & _HEAP_TYPE)
    error: BaseException = base.__new__(cls, *arguments)
    base.__init__(error, *arguments)
    if state is not None:
        error.__setstate__(state)
    return error

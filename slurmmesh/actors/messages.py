"""What a host and a proc, and a caller and an actor, say to each other. Plain data."""

from __future__ import annotations

import pickle
import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slurmmesh.errors import ActorError, SupervisionError
from slurmmesh.shape import Region

if TYPE_CHECKING:
    from slurmmesh.wire.identity import Credentials


@dataclass(frozen=True)
class ProcWelcome:
    """The first thing a new proc is told: who and where it is."""

    mesh: str
    rank: int
    region: Region
    host: str
    host_address: str
    incarnation: int
    job_folder: str | None
    credentials: Credentials | None


@dataclass(frozen=True)
class StopProc:
    """End in order: finish the running message, drop queued ones, clean up, exit 0."""


@dataclass(frozen=True)
class CreateActor:
    """Build an actor. ``cls`` and arguments as the user gave them."""

    name: str
    cls: type
    args: tuple[Any, ...]
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Call:
    """Run an endpoint. ``region`` is the slice called, None for the whole mesh."""

    method: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    region: Region | None


@dataclass(frozen=True)
class Failure:
    """An exception on its way: the pickled original beside text that survives if it cannot travel.

    ``fatal`` says that not the user's endpoint raised but that the actor or its proc is gone;
    the exception is then raised as it is, not wrapped.
    """

    summary: str
    formatted: str
    pickled: bytes
    actor: str
    rank: int
    host: str
    fatal: bool = False

    @classmethod
    def of(
        cls, error: BaseException, *, actor: str, rank: int, host: str, fatal: bool = False
    ) -> Failure:
        """Describe ``error``, which may be one that cannot be pickled."""
        # cloudpickle is needed for classes of __main__; imported late, errors are rare.
        import cloudpickle

        summary = "".join(traceback.format_exception_only(type(error), error)).strip()
        formatted = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        try:
            pickled = cloudpickle.dumps(error)
        except Exception:
            pickled = b""
        return cls(summary, formatted, pickled, actor, rank, host, fatal)

    def rebuild(self) -> BaseException:
        """The exception to raise at the caller."""
        original: BaseException | None = None
        if self.pickled:
            try:
                loaded = pickle.loads(self.pickled)
                original = loaded if isinstance(loaded, BaseException) else None
            except Exception:  # its class is not importable here or refuses its own arguments
                original = None
        if self.fatal:
            return original or SupervisionError(self.summary)
        error = ActorError(
            f"{self.actor!r} rank {self.rank} on {self.host} raised {self.summary}\n"
            f"remote traceback:\n{self.formatted}",
            exception=original,
            exception_formatted=self.formatted,
            actor=self.actor,
            rank=self.rank,
            host=self.host,
        )
        error.__cause__ = original
        return error

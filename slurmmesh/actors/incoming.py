"""Calls and casts as they come to an actor."""

from __future__ import annotations

from typing import Any, NamedTuple

from slurmmesh.actors.waits import MARK_SIZE
from slurmmesh.wire.batches import BatchLink
from slurmmesh.wire.frames import Frame, Kind


class Message(NamedTuple):
    """A call or cast on its way to an actor: as a frame, or already apart.

    Attributes:
        link: it came by; the answer goes back there.
        number: of a message without frame: of the call; negative for a cast.
        actor: that is called.
        where: the slice called, see ``Region.pack``.
        mark: of a message without frame: of the call, if an actor made it; see ``Waits.ask``.
    """

    link: BatchLink
    frame: Frame | None
    number: int = 0
    actor: int = 0
    method: str = ""
    args: tuple[Any, ...] = ()
    where: Any = None
    mark: bytes = b""

    @property
    def is_cast(self) -> bool:
        """Whether no answer is expected."""
        return self.number < 0 if self.frame is None else self.frame.kind is Kind.CAST

    @property
    def call_mark(self) -> bytes:
        """The mark of the call, wherever it is; of one of the program, something without sense."""
        return self.mark if self.frame is None else bytes(self.frame.body[-MARK_SIZE:])

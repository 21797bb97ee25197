"""Similar lines of many ranks as one line with a number. Pure: no clock, no output."""

from __future__ import annotations

import re
from dataclasses import dataclass

MAX_KINDS = 512
"""So many kinds of lines are held at once; with more, what is held is shown before its time."""

_VARIABLE = re.compile(
    r"\b0[xX][0-9a-fA-F]+|"  # addresses
    r"[+-]?\b(?=\d*[a-fA-F])(?=[a-fA-F]{0,8}\d)[0-9a-fA-F]{4,}\b|"  # hashes, ids
    r"[+-]?\d+(?:[.:,]\d+)*(?:[eE][+-]?\d+)?"  # counts, ranks, times, figures
)


@dataclass(frozen=True)
class Line:
    """A line of a rank.

    Attributes:
        at: seconds since the epoch, when its host read it.
        fd: 1 or 2, as the rank wrote it.
    """

    mesh: str
    rank: int
    fd: int
    at: float
    text: str

    @property
    def kind(self) -> tuple[str, int, str]:
        """Equal for similar lines: those that differ in numbers and in the rank alone."""
        return self.mesh, self.fd, _VARIABLE.sub("#", self.text)


@dataclass
class Folded:
    """The first line of its kind, and how many similar ones came after it."""

    line: Line
    similar: int = 0


@dataclass
class Dropped:
    """So many lines of a rank came too fast to be told here."""

    mesh: str
    rank: int
    count: int = 0


class Folder:
    """Holds back lines for a window of time, one of each kind, and counts the others.

    The window begins with the first line that comes when nothing is held.

    Args:
        window_s: its length; 0 folds nothing.
    """

    def __init__(self, window_s: float, max_kinds: int = MAX_KINDS) -> None:
        self._window_s = window_s
        self._max_kinds = max_kinds
        self._held: dict[tuple[str, int, str], Folded] = {}
        self._dropped: dict[tuple[str, int], Dropped] = {}
        self._due: float | None = None

    @property
    def due(self) -> float | None:
        """When what is held is to be taken; None while nothing is."""
        return self._due

    def add(self, line: Line, now: float) -> list[Folded | Dropped]:
        """Take a line. Returns what is to be shown at once, because no more can be held."""
        if not self._window_s:
            return [Folded(line)]
        kind = line.kind
        if (held := self._held.get(kind)) is not None:
            held.similar += 1
            return []
        shown = self.take() if len(self._held) >= self._max_kinds else []
        self._held[kind] = Folded(line)
        self._begin(now)
        return shown

    def drop(self, mesh: str, rank: int, count: int, now: float) -> None:
        """Note lines of a rank that did not come."""
        self._dropped.setdefault((mesh, rank), Dropped(mesh, rank)).count += count
        self._begin(now)

    def take(self) -> list[Folded | Dropped]:
        """What is held, in the order in which the first of each kind came. It is held no more."""
        held: list[Folded | Dropped] = [*self._held.values(), *self._dropped.values()]
        self._held.clear()
        self._dropped.clear()
        self._due = None
        return held

    def _begin(self, now: float) -> None:
        if self._due is None:
            self._due = now + self._window_s

"""The lines of a job's logs: what they begin with, which are wanted, how they are shown. Pure.

In a host's log each line of a rank begins ``12:34:56.789 mesh[3] | ``. Those of a program, in
the controller's log, are as it wrote them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from slurmmesh.errors import UsageError
from slurmmesh.slurm.ids import parse_tasks

_HEAD = re.compile(
    rb"(\d\d):(\d\d):(\d\d)\.(\d{3}) (?:(?P<mesh>.{1,200}?)\[(?P<rank>\d{1,9})\]|slurmmesh) \| "
)
_DAY_S = 86400.0
# Colours stay; what moves the cursor, rings or renames the terminal's window does not.
_COLOUR = re.compile(r"(\x1b\[[\d;:]*m)")


@dataclass(frozen=True)
class Selection:
    """Which lines are wanted. Empty sets stand for all.

    Attributes:
        controller: lines of the controller, and of the program in it.
        hosts: lines of the logs of hosts.
        names: only of these hosts.
    """

    controller: bool = True
    hosts: bool = True
    ranks: frozenset[int] = frozenset()
    meshes: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()

    def wants(self, line: bytes) -> bool:
        """Whether a line of a host's log is wanted."""
        if not self.ranks and not self.meshes:
            return True
        head = _HEAD.match(line)
        if head is None or head["rank"] is None:
            return False
        if self.ranks and int(head["rank"]) not in self.ranks:
            return False
        return not self.meshes or head["mesh"].decode(errors="replace") in self.meshes


def parse_ranks(text: str) -> frozenset[int]:
    """``3,5-7`` to {3, 5, 6, 7}. Raises UsageError."""
    try:
        return frozenset(parse_tasks(text))
    except UsageError:
        raise UsageError(f"--rank {text!r}: give ranks such as 3, or 0,5-7") from None


class Clock:
    """When the lines of one host's log were written, in seconds, to put them in order.

    They tell the time of day alone: where it goes back by hours, a new day has begun.
    """

    def __init__(self) -> None:
        self._last = 0.0
        self._day = 0.0

    def time_of(self, line: bytes) -> float:
        """One without a time counts with the line before it."""
        head = _HEAD.match(line)
        if head is not None:
            hours, minutes, seconds, millis = (int(part) for part in head.groups()[:4])
            time = self._day + ((hours * 60 + minutes) * 60 + seconds) + millis / 1000
            if time < self._last - _DAY_S / 2:
                self._day += _DAY_S
                time += _DAY_S
            self._last = max(self._last, time)
        return self._last


def of_host(line: bytes, host: str) -> bytes:
    """A line of a host's log among others': one that names no rank gets the host's name."""
    return line if _HEAD.match(line) else f"{host} | ".encode() + line


def for_terminal(line: bytes) -> str:
    """A line that cannot mess a terminal.

    Of what a progress bar overwrites, the last is shown.
    """
    text = line.decode(errors="replace").rstrip("\r").rpartition("\r")[2]
    parts = _COLOUR.split(text.expandtabs())
    clean = [part if number % 2 else _printable(part) for number, part in enumerate(parts)]
    # A colour must not run on into what comes next.
    return "".join(clean) + ("\x1b[0m" if len(parts) > 1 else "")


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else "�" for char in text)

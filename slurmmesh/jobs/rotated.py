"""A host's log as one stream of lines, over all the files it was put into.

How they are named, ``folders.put_aside`` tells; ``hosts/rotation.py`` puts them aside.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from slurmmesh.folders import aside_of, put_aside
from slurmmesh.telemetry.tail import ByteTail, file_id

Last = Callable[[Path, int], tuple[list[bytes], int]]


class RotatedTail:
    """Hands out the lines of a growing log, each once, as ``ByteTail`` does for one file.

    Of files that are deleted before they were read, the lines are missing.
    """

    def __init__(self, path: Path, longest_line: int) -> None:
        self.path = path
        self.at_end = True
        self.at_once: int | None = None
        self._longest_line = longest_line
        self._read_up_to = 0  # files with this number and below
        self._number: int | None = None  # of the file being read; None: it is the newest
        self._tail = ByteTail(path, longest_line)
        self._begin_next()

    def skip_to_last(self, count: int, last_of: Last) -> list[bytes]:
        """Go to the end; returns the last lines before it.

        Args:
            last_of: gives the last lines of one file, and where the line after them begins.
        """
        while True:
            current = file_id(self.path)
            numbers = aside_of(self.path)
            lines, end = last_of(self.path, count)
            if file_id(self.path) == current:  # else it was put aside meanwhile
                break
        for number in reversed(numbers):
            if len(lines) < count:
                lines = last_of(put_aside(self.path, number), count - len(lines))[0] + lines
        self._read_up_to = max(numbers, default=0)
        self._number = None
        self._tail = ByteTail(self.path, self._longest_line, end, current)
        return lines

    def read(self) -> list[bytes]:
        """Lines completed since the last call; see ``ByteTail.read``."""
        if self._number is None and self._tail.file_id is None:
            self._begin_next()
        if self.at_once is not None:
            self._tail.at_once = self.at_once
        lines = self._tail.read()
        self.at_end = self._tail.at_end
        if self._number is not None and self._tail.at_end:
            self._read_up_to = self._number
            lines += self._leave()
        elif self._tail.replaced:
            lines += self._follow()
        return lines

    def rest(self) -> bytes:
        """See ``ByteTail.rest``."""
        return self._tail.rest()

    def _follow(self) -> list[bytes]:
        """The newest file has been put aside: go on in it, under its new name."""
        for number in aside_of(self.path):
            if file_id(put_aside(self.path, number)) == self._tail.file_id:
                self._number, self._tail.path = number, put_aside(self.path, number)
                self.at_end = False
                return []
        return self._leave()  # it is gone

    def _leave(self) -> list[bytes]:
        rest = self._tail.rest()
        self._begin_next()
        self.at_end = False
        return [rest] if rest else []

    def _begin_next(self) -> None:
        # The newest is looked at first: if it is put aside meanwhile, it is among the others.
        newest = file_id(self.path)
        numbers = [number for number in aside_of(self.path) if number > self._read_up_to]
        self._number = numbers[0] if numbers else None
        if self._number is None:
            self._tail = ByteTail(self.path, self._longest_line, only=newest)
        else:
            self._tail = ByteTail(put_aside(self.path, self._number), self._longest_line)

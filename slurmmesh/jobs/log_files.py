"""The logs of one attempt of a job, read as they grow and merged into one stream of lines."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from slurmmesh.errors import UsageError
from slurmmesh.folders import files_of
from slurmmesh.jobs.log_lines import Clock, Selection, of_host
from slurmmesh.jobs.rotated import RotatedTail
from slurmmesh.telemetry.tail import ByteTail

_CONTROLLERS = ("controller.log", "controller.err")
_SUFFIX = ".log"
_HOST_LOG = re.compile(r"(.+\.log)(?:\.\d{1,9})?")  # with those that were put aside
# What all files together may hold in memory, and what one reads at once at least.
_MEMORY = 32 << 20
_LEAST_AT_ONCE = 64 << 10
_LONGEST_LINE = 1 << 20
_BLOCK = 64 << 10


class LogFiles:
    """The logs in an attempt's folder; those that appear later too.

    Args:
        attempt: its folder, which need not exist yet.
        wanted: which lines.
        last: begin with so many of the last wanted lines of each file; None: with the first.

    Raises:
        UsageError: a file is there and cannot be read (from any method).
    """

    def __init__(self, attempt: Path, wanted: Selection, last: int | None = None) -> None:
        self._attempt = attempt
        self._wanted = wanted
        self._sources: dict[Path, _Source] = {}
        self._discover(last)

    @property
    def at_end(self) -> bool:
        """Whether all was read that was there."""
        return all(source.tail.at_end for source in self._sources.values())

    @property
    def is_empty(self) -> bool:
        """Whether there is no file at all to read."""
        return not any(
            os.path.exists(path)
            for source in self._sources.values()
            for path in files_of(source.tail.path)
        )

    def read(self, chunks: int | None = None) -> Iterator[bytes]:
        """What was written since: the controller's lines, then those of hosts by their time.

        Args:
            chunks: so many pieces of each file at most, None for all that is there.
        """
        self._discover()
        sources = list(self._sources.values())
        for source in sources:
            if not source.host:
                yield from source.lines(chunks)
        at_once = max(_LEAST_AT_ONCE, _MEMORY // max(1, len(sources)))
        for source in sources:
            source.tail.at_once = at_once
        timed = [source.timed_lines(chunks) for source in sources if source.host]
        for _, line in heapq.merge(*timed, key=lambda pair: pair[0]):
            yield line

    def rest(self) -> Iterator[bytes]:
        """Last lines that have no end; call it when no more will come."""
        for source in self._sources.values():
            if line := source.tail.rest():
                yield from source.chosen([line])

    def _discover(self, last: int | None = None) -> None:
        found: list[tuple[Path, str]] = []
        if self._wanted.controller:
            found += [(self._attempt / name, "") for name in _CONTROLLERS]
        if self._wanted.hosts:
            found += [(path, path.name.removesuffix(_SUFFIX)) for path in self._host_logs()]
        for path, host in found:
            if path not in self._sources:
                self._sources[path] = _Source(path, host, self._wanted, last)

    def _host_logs(self) -> list[Path]:
        folder, chosen = self._attempt / "logs", self._wanted.names
        try:
            with _readable(folder), os.scandir(folder) as entries:
                names = {
                    match[1] for entry in entries if (match := _HOST_LOG.fullmatch(entry.name))
                }
        except FileNotFoundError:
            return []
        return [
            folder / name
            for name in sorted(names)
            if not chosen or name.removesuffix(_SUFFIX) in chosen
        ]


class _Source:
    """The log of a host, or one file of the controller's, for which ``host`` is empty."""

    def __init__(self, path: Path, host: str, wanted: Selection, last: int | None) -> None:
        self.host = host
        self._wanted = wanted
        self._clock = Clock()
        self._first: list[bytes] = []
        self.tail: ByteTail | RotatedTail
        with _readable(path):
            if host:
                self.tail = tail = RotatedTail(path, _LONGEST_LINE)
                if last is not None:
                    self._first = tail.skip_to_last(last, self._last_lines)
            else:
                offset = 0
                if last is not None:
                    self._first, offset = self._last_lines(path, last)
                self.tail = ByteTail(path, _LONGEST_LINE, offset)

    def lines(self, chunks: int | None) -> Iterator[bytes]:
        """Its wanted lines."""
        first, self._first = self._first, []
        yield from self._named(first)
        read = 0
        while chunks is None or read < chunks:
            with _readable(self.tail.path):
                found = self.tail.read()
            yield from self.chosen(found)
            read += 1
            if self.tail.at_end:
                return

    def timed_lines(self, chunks: int | None) -> Iterator[tuple[float, bytes]]:
        """Each with its time."""
        for line in self.lines(chunks):
            yield self._clock.time_of(line), line

    def chosen(self, lines: list[bytes]) -> Iterator[bytes]:
        """Those of lines of this file that are wanted."""
        return self._named([line for line in lines if self._wants(line)])

    def _named(self, lines: list[bytes]) -> Iterator[bytes]:
        return (of_host(line, self.host) if self.host else line for line in lines)

    def _last_lines(self, path: Path, count: int) -> tuple[list[bytes], int]:
        return _last_lines(path, count, self._wants)

    def _wants(self, line: bytes) -> bool:
        return not self.host or self._wanted.wants(line)


def _last_lines(path: Path, count: int, wants: Callable[[bytes], bool]) -> tuple[list[bytes], int]:
    """The last wanted lines of a file, and where the line after them begins.

    A last line without its end is not among them. The file is read from its end, in blocks.

    Raises OSError.
    """
    if not os.path.exists(path):
        return [], 0
    with open(path, "rb") as file:
        end = _end_of_last_line(file)
        wanted = (line for line in _lines_backwards(file, end) if wants(line))
        return list(itertools.islice(wanted, count))[::-1], end


def _end_of_last_line(file: BinaryIO) -> int:
    """The place behind the last newline; 0 if there is none."""
    at = file.seek(0, os.SEEK_END)
    while at > 0:
        size = min(_BLOCK, at)
        at = file.seek(at - size)
        place = file.read(size).rfind(b"\n")
        if place >= 0:
            return at + place + 1
    return 0


def _lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The lines before ``end``, which is behind a newline, from the last to the first."""
    at, rest = max(0, end - 1), b""
    while at > 0:
        size = min(_BLOCK, at)
        at = file.seek(at - size)
        rest, *lines = (file.read(size) + rest).split(b"\n")
        yield from reversed(lines)
        rest = rest[:_LONGEST_LINE]
    if end > 0:
        yield rest


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from None

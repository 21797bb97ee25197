"""Reads a text file or a JSON-lines file that another process is still writing.

Nothing here waits or polls: a caller asks for what is new, when it wants to know. The file is
opened anew for each look, because on a network file system only an open is sure to show what
another node has written.
"""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

from slurmmesh.errors import UsageError
from slurmmesh.folders import latest_attempt
from slurmmesh.telemetry.events import Event

_BYTES_PER_READ = 4 << 20
FileId = tuple[int, int]

_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ESTALE}


class ByteTail:
    """Hands out the lines of a growing file as they are, each once.

    A file that is not there yet has no lines. A file that shrank or was replaced is read again
    from its start.

    Attributes:
        at_end: whether the last read came to the end of the file as it was then.
        file_id: of the file that is read; None while none was there.
        replaced: another file has taken the place of the one that is to be read alone.
        at_once: bytes that one call of ``read`` takes at most.

    Args:
        path: the file; its folder need not exist yet.
        longest_line: bytes after which a line without an end is handed out in pieces, so that a
            program that never ends its line can neither hide its output nor fill the memory.
        offset: where to begin, in a file that is there.
        only: read this file alone. No other is begun in its place.
    """

    def __init__(
        self,
        path: Path | str,
        longest_line: int = 1 << 20,
        offset: int = 0,
        only: FileId | None = None,
    ) -> None:
        self.path = Path(path)
        self.at_end = True
        self._longest_line = longest_line
        self.at_once = _BYTES_PER_READ
        self.file_id = only or (file_id(self.path) if offset else None)
        self.replaced = False
        self._only = only
        self._offset = offset
        self._partial = b""

    def read(self) -> list[bytes]:
        """Return the lines completed since the last call, without their newlines.

        ``at_end`` says whether there was more than one call may take.

        Raises:
            OSError: the file is there and cannot be read.
        """
        new = self._read_bytes()
        *lines, self._partial = (self._partial + new).split(b"\n")
        while len(self._partial) > self._longest_line:
            lines.append(self._partial[: self._longest_line])
            self._partial = self._partial[self._longest_line :]
        return lines

    def rest(self) -> bytes:
        """Return the last line, if it has no newline yet, and count it as read."""
        rest, self._partial = self._partial, b""
        return rest

    def _read_bytes(self) -> bytes:
        self.at_end = True
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                found = (status.st_dev, status.st_ino)
                self.replaced = self._only is not None and found != self._only
                if self.replaced:
                    return b""
                if found != self.file_id or status.st_size < self._offset:
                    self.file_id, self._offset, self._partial = found, 0, b""
                if status.st_size == self._offset:
                    return b""
                file.seek(self._offset)
                data = file.read(self.at_once)
        except OSError as error:
            if error.errno in _GONE:
                return b""
            raise
        self._offset += len(data)
        self.at_end = self._offset >= status.st_size
        return data


class LineTail:
    """Hands out the lines of a growing file as text, each once; see :class:`ByteTail`.

    Undecodable bytes become U+FFFD.
    """

    def __init__(self, path: Path | str, longest_line: int = 1 << 20) -> None:
        self._bytes = ByteTail(path, longest_line)

    @property
    def at_end(self) -> bool:
        """Whether the last read came to the end of the file as it was then."""
        return self._bytes.at_end

    def read(self) -> list[str]:
        """Return the lines completed since the last call, without their newlines.

        One call reads at most 4 MiB; ``at_end`` says whether there was more.

        Raises:
            OSError: the file is there and cannot be read.
        """
        return [line.decode(errors="replace") for line in self._bytes.read()]

    def rest(self) -> str:
        """Return the last line, if it has no newline yet, and count it as read."""
        return self._bytes.rest().decode(errors="replace")


class EventTail:
    """Hands out the events of a growing event log, each once.

    Attributes:
        malformed: lines that were no JSON object; they are passed over.
    """

    def __init__(self, path: Path | str) -> None:
        self.malformed = 0
        self._lines = LineTail(path, longest_line=64 << 20)

    @property
    def at_end(self) -> bool:
        """Whether the last read came to the end of the log as it was then."""
        return self._lines.at_end

    def read(self) -> list[Event]:
        """Return the events completed since the last call (see :meth:`LineTail.read`)."""
        events = []
        for line in self._lines.read():
            if not line.strip():
                continue
            try:
                event = json.loads(line)
            except (ValueError, RecursionError):
                event = None
            if isinstance(event, dict):
                events.append(event)
            else:
                self.malformed += 1
        return events


def find_event_log(place: Path | str) -> Path:
    """Return the event log meant by ``place``: the file itself, or ``events.jsonl`` in a folder.

    In the folder of a job, that of its last attempt.

    Raises:
        UsageError: there is none.
    """
    path = Path(place)
    if path.is_dir():
        path = latest_attempt(path) / "events.jsonl"
    if not path.is_file():
        raise UsageError(
            f"there is no event log at {path}: give a job folder, or the events.jsonl in it"
        )
    return path


def file_id(path: Path | str) -> FileId | None:
    """What tells a file from others, whatever its name becomes; None if there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino

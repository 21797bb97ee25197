"""A log file that is bounded: when it is full it is put aside under a number, and a new one begun.

``node1.log`` is the newest; ``node1.log.1`` was the first to be put aside, ``node1.log.2`` the
second, and so on.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from slurmmesh import config
from slurmmesh.folders import aside_of, put_aside

_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC


def log_limits() -> tuple[int, int]:
    """Bytes of one file and how many are kept beside it, as the settings say.

    Raises ConfigError.
    """
    settings = config.load_settings()
    return max(1, int(settings.log_max_mb * 2**20)), settings.log_keep


class RotatingFile:
    """Takes whole lines for an ``Appender``, whose thread may wait for the file system.

    A line is never split between two files. Where the file system does not let a file be put
    aside, the one that is open goes on.

    Args:
        max_bytes: so large a file may become; a longer line has one for itself.
        keep: how many of those that were put aside are kept.

    Raises OSError: the file cannot be opened.
    """

    def __init__(self, path: str, max_bytes: int, keep: int) -> None:
        self._path = Path(path)
        self._max_bytes = max_bytes
        self._keep = keep
        self._fd = os.open(path, _FLAGS, 0o600)
        self._size = os.fstat(self._fd).st_size
        self._limit = max_bytes
        self._numbers = aside_of(self._path)
        self._line_ended = True

    def write(self, data: bytes) -> int:
        """Write some of ``data``, which is whole lines; returns how much. Raises OSError."""
        length = data.find(b"\n") + 1 or len(data)
        if self._line_ended and self._size and self._size + length > self._limit:
            self._rotate()
        room = self._limit - self._size
        if room < len(data):
            length = max(length, data.rfind(b"\n", 0, max(0, room)) + 1)
            data = data[:length]
        written = os.write(self._fd, data)
        self._size += written
        self._line_ended = data[:written].endswith(b"\n")
        return written

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def _rotate(self) -> None:
        number = self._numbers[-1] + 1 if self._numbers else 1
        fresh = self._path.with_name(f"{self._path.name}.new")
        fd = -1
        try:
            fd = os.open(fresh, _FLAGS, 0o600)
            with contextlib.suppress(FileNotFoundError):  # somebody took it away
                os.rename(self._path, put_aside(self._path, number))
            os.rename(fresh, self._path)
        except OSError:
            if fd >= 0:
                os.close(fd)
            self._limit = self._size + self._max_bytes  # try again when it has grown
            return
        os.close(self._fd)
        self._fd, self._size, self._limit = fd, 0, self._max_bytes
        self._numbers.append(number)
        while len(self._numbers) > self._keep:
            with contextlib.suppress(OSError):
                os.unlink(put_aside(self._path, self._numbers[0]))
            del self._numbers[0]

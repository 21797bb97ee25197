"""Files that a reader finds as they were or as they are, whole, on any node's file system."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """Open a new file that takes the place of ``path`` once it is written; not after an error.

    ``mode`` is what the umask leaves of it. Raises OSError, also for a disk or a quota that is
    full: some file systems tell of it only when they are made to write.
    """
    # No other process on any node has this name, whatever its pid.
    draft = path.with_name(f".{path.name}.{os.urandom(6).hex()}")
    try:
        with open(draft, "xb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink()
        raise


def write_whole(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Write a file as ``replacing`` does. Raises OSError."""
    with replacing(path, mode) as file:
        file.write(content)


def refresh(folder: Path) -> None:
    """Have a network file system look again for what is in a folder.

    A change of a folder's attributes, even to what they are, drops what the client believes.
    """
    with contextlib.suppress(OSError):
        folder.chmod(folder.stat().st_mode)

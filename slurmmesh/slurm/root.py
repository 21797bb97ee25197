"""The folder of the job folders, made ready for a new job."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
import time
from pathlib import Path

from slurmmesh import files, folders
from slurmmesh.errors import ConfigError, SetupError

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PROBE_BYTES = 1 << 20
# The logs and the event log of a short job; how much a long one needs nobody knows before.
_ROOM_BYTES = 16 << 20


def prepare_root(root: Path) -> None:
    """Make the folder of the job folders (0700) if it is not there, and check that we may use it.

    Raises:
        ConfigError: it cannot be made or written to.
        SetupError: its disk, or the quota there, is full.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_use(root, error) from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise ConfigError(_cannot(root, "no permission to write there"))
    if reason := no_room(root, _ROOM_BYTES):
        raise SetupError(_full(root, reason))


def no_room(folder: str | Path, room: int) -> str | None:
    """Why ``room`` bytes cannot be written to a folder; None if they can.

    Writes a megabyte and removes it again.
    """
    try:
        stat = os.statvfs(folder)
        if stat.f_bavail * stat.f_frsize < room:
            return f"it has less than {room >> 20} MB free"
        # Quotas show only when one writes.
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(bytes(_PROBE_BYTES))
    except OSError as error:
        return error.strerror or str(error)
    return None


def cannot_use(root: Path, error: OSError) -> ConfigError | SetupError:
    """What to raise when a job folder could not be made in ``root``."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return SetupError(_full(root, reason))
    return ConfigError(_cannot(root, reason))


class EarlierJobs:
    """The job folders that were in the root before a submit.

    A cluster set up anew counts jobs from the beginning. What an earlier job of the same id left
    must not be taken for the new job's, which moves it aside as well when it starts.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._inodes: dict[str, int] = {}
        self._time = time.time()
        # Not everybody who may write to the root may also read it.
        with contextlib.suppress(OSError), os.scandir(root) as entries:
            self._inodes = {entry.name: entry.inode() for entry in entries}
        # By the clock of the file system, which dates the folders.
        with contextlib.suppress(OSError), tempfile.TemporaryFile(dir=root) as probe:
            self._time = os.fstat(probe.fileno()).st_mtime

    def set_aside(self, job_id: str) -> None:
        """Move aside what an earlier job of this id, and tasks of it, left."""
        mark = f".before-{int(time.time())}"
        for name, inode in self._inodes.items():
            if name == job_id or (name.startswith(f"{job_id}_") and folders.is_job_id(name)):
                folder = self._root / name
                files.refresh(folder)
                with contextlib.suppress(OSError):
                    stat = folder.stat()
                    # What was changed since is the folder of the new job, which runs already.
                    if stat.st_ino == inode and stat.st_mtime < self._time:
                        folder.rename(folder.with_name(name + mark))


def _full(root: Path, reason: str) -> str:
    return (
        f"no room for a job in {str(root)!r}: {reason}; free some, or set SLURMMESH_JOB_ROOT to "
        "another folder that all nodes see. Nothing was started"
    )


def _cannot(root: Path, reason: str) -> str:
    return (
        f"job folders cannot be made in {str(root)!r}: {reason}; "
        "set SLURMMESH_JOB_ROOT to a folder that you may write to and that all nodes see"
    )

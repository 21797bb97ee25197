"""The folders of the jobs: the root that holds them, and the one of a local job."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

from slurmmesh import config
from slurmmesh.errors import ConfigError, SetupError
from slurmmesh.lab.folder import no_room

_FULL = (errno.ENOSPC, errno.EDQUOT)
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
        raise _error(root, error) from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise ConfigError(_cannot(root, "no permission to write there"))
    if reason := no_room(root, _ROOM_BYTES):
        raise SetupError(_full(root, reason))


def make_local_folder(root: Path) -> tuple[str, Path]:
    """Make the folder (0700) of a new local job; returns the job's id and the folder.

    Raises:
        ConfigError: it cannot be made.
        SetupError: the disk is full.
    """
    try:
        return config.make_local_folder(root)
    except OSError as error:
        raise _error(root, error) from None


class EarlierJobs:
    """The job folders that were in the root before a submit.

    A cluster set up anew counts jobs from the beginning. What an earlier job of the same id left
    must not be taken for the new job's, which moves it aside as well when it starts.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        with os.scandir(root) as entries:
            self._inodes = {entry.name: entry.inode() for entry in entries}

    def set_aside(self, job_id: str) -> None:
        """Move aside what an earlier job of this id left."""
        folder = self._root / job_id
        with contextlib.suppress(OSError):
            if job_id in self._inodes and folder.stat().st_ino == self._inodes[job_id]:
                folder.rename(folder.with_name(f"{job_id}.before-{int(time.time())}"))


def why_incomplete(folder: Path) -> str:
    """A line about a job folder whose disk is full by now; empty if it is not.

    A job that can write no more cannot tell so in its own log either.
    """
    if not folder.is_dir() or not (reason := no_room(folder, 0)):
        return ""
    return (
        f"nothing more can be written to {folder}: {reason}. What lies there is not complete, and "
        "the job may have failed by that; free some room, or set SLURMMESH_JOB_ROOT to another "
        "folder"
    )


def _error(root: Path, error: OSError) -> ConfigError | SetupError:
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        return SetupError(_full(root, reason))
    return ConfigError(_cannot(root, reason))


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

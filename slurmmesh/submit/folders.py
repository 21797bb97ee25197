"""What submit does with the folders of jobs."""

from __future__ import annotations

import os
from pathlib import Path

from slurmmesh import folders
from slurmmesh.slurm.root import cannot_use, no_room


def make_local_folder(root: Path) -> tuple[str, Path]:
    """Make the folder (0700) of a new local job; returns the job's id and the folder.

    Raises:
        ConfigError: it cannot be made.
        SetupError: the disk is full.
    """
    try:
        return folders.make_local_folder(root)
    except OSError as error:
        raise cannot_use(root, error) from None


def why_incomplete(folder: Path) -> str:
    """A line about a job folder whose disk is full by now; empty if it is not.

    A job that can write no more cannot tell so in its own log either.
    """
    if not os.path.isdir(folder) or not (reason := no_room(folder, 0)):
        return ""
    return (
        f"nothing more can be written to {folder}: {reason}. What lies there is not complete, and "
        "the job may have failed by that; free some room, or set SLURMMESH_JOB_ROOT to another "
        "folder"
    )

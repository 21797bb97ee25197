"""The folders of the jobs: the root that holds them, and the one of a local job."""

from __future__ import annotations

import os
import time
from pathlib import Path

from slurmmesh.errors import ConfigError


def prepare_root(root: Path) -> None:
    """Make the folder of the job folders (0700) if it is not there, and check that we may use it.

    Raises:
        ConfigError: it cannot be made or written to.
    """
    try:
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(_cannot(root, error.strerror or str(error))) from None
    if not os.access(root, os.W_OK | os.X_OK):
        raise ConfigError(_cannot(root, "no permission to write there"))


def make_local_folder(root: Path) -> tuple[str, Path]:
    """Make the folder (0700) of a new local job; returns the job's id and the folder.

    Raises:
        ConfigError: it cannot be made.
    """
    job_id = f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = root / job_id
    try:
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise ConfigError(_cannot(root, error.strerror or str(error))) from None
    return job_id, folder


def _cannot(root: Path, reason: str) -> str:
    return (
        f"job folders cannot be made in {str(root)!r}: {reason}; "
        "set SLURMMESH_JOB_ROOT to a folder that you may write to and that all nodes see"
    )

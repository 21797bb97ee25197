"""The folders of jobs: what they are called, the attempts in them, and where to find them again.

``<root>/<job id>`` belongs to one job of Slurm: what was submitted, and a folder for each time that
Slurm started it (``attempt-0``, after a requeue ``attempt-1``). A task of an array has a folder of
its own, ``<root>/<array id>_<task>``. A job on one machine (``local-…``) is started once: its
folder is its only attempt.

A user's index (links in ``$XDG_STATE_HOME/slurmmesh/jobs``) finds jobs that were submitted with
another root. It is a convenience: where it cannot be written, nothing else suffers.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

SUBMITTED = "submit.json"
SCRIPT = "script.sh"
_ATTEMPT = re.compile(r"attempt-(\d+)", re.ASCII)
# An id of Slurm's, of a task of an array, or of a local job; what was set aside has a dot.
_JOB = re.compile(r"\d+(?:_\d+)?|local-[\w-]+", re.ASCII)


def job_folder(root: Path, job_id: str) -> Path:
    """The folder of a job: ``123``, ``123_4`` or ``local-…``."""
    return root / job_id


def attempt_folder(folder: Path, restarts: int) -> Path:
    """The folder of the attempt that follows ``restarts`` requeues of a job of Slurm."""
    return folder / f"attempt-{restarts}"


def attempts(folder: Path) -> list[Path]:
    """The attempts in a job's folder, first to last; the folder itself if it has none."""
    numbers = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        numbers = [int(match[1]) for entry in entries if (match := _ATTEMPT.fullmatch(entry.name))]
    return [folder / f"attempt-{number}" for number in sorted(numbers)] or [folder]


def latest_attempt(folder: Path) -> Path:
    """The folder with the logs, events and result of a job's last attempt."""
    return attempts(folder)[-1]


def job_of(attempt: Path) -> Path:
    """The job's folder that an attempt's is in; itself if it is no attempt's."""
    return attempt.parent if _ATTEMPT.fullmatch(attempt.name) else attempt


def make_local_folder(root: Path) -> tuple[str, Path]:
    """Make the folder (0700) of a new local job, and the root of job folders if need be.

    Returns the job's id and the folder. Raises OSError.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    job_id = f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = root / job_id
    folder.mkdir(mode=0o700)
    remember(folder)
    return job_id, folder


def keep_submission(folder: Path, record: Mapping[str, Any], script: str) -> None:
    """Write what was submitted into a job's folder (0700), and remember the folder.

    Raises OSError.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _write(folder / SCRIPT, os.fsencode(script))
    _write(folder / SUBMITTED, json.dumps(record, indent=1).encode() + b"\n")
    remember(folder)


def submission(folder: Path) -> dict[str, Any]:
    """What ``keep_submission`` wrote; empty if there is nothing that can be read."""
    try:
        found = json.loads((folder / SUBMITTED).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Add a job's folder to the user's index. An older job of the same id is forgotten."""
    index = _index(os.environ if environ is None else environ)
    if index is None:
        return
    with contextlib.suppress(OSError):
        index.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=".new-", dir=index))
        try:
            link = draft / "link"
            link.symlink_to(folder.absolute(), target_is_directory=True)
            link.replace(index / folder.name)
        finally:
            with contextlib.suppress(OSError):
                (draft / "link").unlink()
            draft.rmdir()


def find(job_id: str, root: Path, environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder of a job: in ``root``, else where the index says; None if it is in neither."""
    if not _JOB.fullmatch(job_id):
        return None
    folder = job_folder(root, job_id)
    if folder.is_dir():
        return folder
    index = _index(os.environ if environ is None else environ)
    if index is None:
        return None
    try:
        folder = Path(os.readlink(index / job_id))
    except OSError:
        return None
    return folder if folder.is_dir() else None


def known(root: Path, environ: Mapping[str, str] | None = None) -> list[Path]:
    """The job folders in ``root`` and in the index, each once, in no order.

    Entries of the index whose folder is gone are dropped from it.
    """
    found = {path.resolve(): path for path in _children(root) if path.is_dir()}
    index = _index(os.environ if environ is None else environ)
    for link in _children(index) if index else []:
        with contextlib.suppress(OSError):
            folder = Path(os.readlink(link))
            if folder.is_dir():
                found.setdefault(folder.resolve(), folder)
            elif folder.parent.is_dir():  # else its file system may only be away for now
                link.unlink()
    return list(found.values())


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return [folder / entry.name for entry in entries if _JOB.fullmatch(entry.name)]
    except OSError:
        return []


def _index(environ: Mapping[str, str]) -> Path | None:
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # as its standard says
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        state = os.path.join(home, ".local", "state")
    return Path(state, "slurmmesh", "jobs")


def _write(path: Path, content: bytes) -> None:
    """So that a reader sees the old file or the new one, whole, and nobody else can read it."""
    descriptor, draft = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            file.write(content)
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise

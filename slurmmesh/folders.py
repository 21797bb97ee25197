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
import functools
import json
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slurmmesh import files

SUBMITTED = "submit.json"
SCRIPT = "script.sh"
_PRIVATE = 0o600
_ATTEMPT = re.compile(r"attempt-(\d+)", re.ASCII)
# An id of Slurm's, or of a task of an array; what was set aside has a dot.
_OF_SLURM = re.compile(r"\d+(?:_\d+)?", re.ASCII)
# Those that are made here end with the pid of the process that made the folder.
_LOCAL = re.compile(r"local-[\w-]+", re.ASCII)
# A link of the index on its way to its name.
_NEW = ".new-"
# A network file system shows a new folder on all machines within so long.
_SEEN_WITHIN_S = 86400.0


def is_job_id(name: str) -> bool:
    """Whether a job's folder may be called so."""
    return _OF_SLURM.fullmatch(name) is not None or is_local_id(name)


def is_local_id(name: str) -> bool:
    """Whether it is the id of a job on one machine, without Slurm."""
    return _LOCAL.fullmatch(name) is not None


def maker_of(job_id: str) -> int | None:
    """The process that made the folder of a local job; None if its id does not tell.

    It lives as long as the job: it is the controller, or the submit that waits for it.
    """
    pid = job_id.rpartition("-")[2]
    return int(pid) if is_local_id(job_id) and pid.isdecimal() else None


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
    files.write_whole(folder / SCRIPT, os.fsencode(script), _PRIVATE)
    files.write_whole(folder / SUBMITTED, json.dumps(record, indent=1).encode() + b"\n", _PRIVATE)
    remember(folder)


def submission(folder: Path) -> dict[str, Any]:
    """What ``keep_submission`` wrote; empty if there is nothing that can be read."""
    try:
        found = json.loads((folder / SUBMITTED).read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def remember(folder: Path, environ: Mapping[str, str] | None = None) -> None:
    """Add a job's folder to the user's index. An older job of the same id is forgotten."""
    index = _index(os.environ if environ is None else environ)
    if index is None:
        return
    with contextlib.suppress(OSError):
        index.mkdir(mode=0o700, parents=True, exist_ok=True)
        link = index / f"{_NEW}{os.urandom(6).hex()}"
        link.symlink_to(folder.absolute(), target_is_directory=True)
        link.replace(index / folder.name)


def find(job_id: str, root: Path, environ: Mapping[str, str] | None = None) -> Path | None:
    """The folder of a job: in ``root``, else where the index says; None if it is in neither."""
    if not is_job_id(job_id):
        return None
    folder = job_folder(root, job_id)
    if os.path.isdir(folder):
        return folder
    index = _index(os.environ if environ is None else environ)
    indexed = index and _target(index / job_id)
    return indexed if indexed and os.path.isdir(indexed) else None


def known(root: Path, environ: Mapping[str, str] | None = None) -> list[Path]:
    """The job folders in ``root`` and in the index, each once, in no order.

    Entries of the index whose folder is gone are dropped from it, a day after they were made.
    """
    real = functools.lru_cache(None)(os.path.realpath)
    found = {
        os.path.join(real(root), entry.name): root / entry.name
        for entry in _entries(root)
        if is_job_id(entry.name) and _is_folder(entry)
    }
    index = _index(os.environ if environ is None else environ)
    for entry in _entries(index) if index else []:
        folder = _target(Path(entry.path))
        if folder is None:
            if entry.name.startswith(_NEW):
                _drop_if_old(entry)
            continue
        place = os.path.join(real(folder.parent), folder.name)
        if place in found:
            continue
        if os.path.isdir(folder):
            found[place] = folder
        elif os.path.isdir(folder.parent):  # else its file system may only be away for now
            _drop_if_old(entry)
    return list(found.values())


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _drop_if_old(link: os.DirEntry[str]) -> None:
    """Unlink a link of the index, but not a new one: its folder may not be seen here yet."""
    with contextlib.suppress(OSError):
        if os.lstat(link).st_mtime < time.time() - _SEEN_WITHIN_S:
            os.unlink(link)


def _target(link: Path) -> Path | None:
    """The job folder that a link of the index leads to; None for what ``remember`` never made."""
    try:
        folder = Path(os.readlink(link))
    except OSError:
        return None
    fits = folder.is_absolute() and folder.name == link.name and is_job_id(link.name)
    return folder if fits else None


def _index(environ: Mapping[str, str]) -> Path | None:
    state = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # as its standard says
        home = os.path.expanduser("~")
        if not os.path.isabs(home):
            return None
        state = os.path.join(home, ".local", "state")
    return Path(state, "slurmmesh", "jobs")


def put_aside(log: Path, number: int) -> Path:
    """``node1.log.3``: what a log is renamed to when it is full, counted from 1.

    A file keeps its number, so who reads it finds it again; the log's own name is the newest's.
    """
    return log.with_name(f"{log.name}.{number}")


def aside_of(log: Path) -> list[int]:
    """The numbers of the files of a log that were put aside, in the order of their lines."""
    pattern = re.compile(re.escape(log.name) + r"\.(\d{1,9})")
    try:
        with os.scandir(log.parent) as entries:
            found = (pattern.fullmatch(entry.name) for entry in entries)
            return sorted(int(match[1]) for match in found if match)
    except (FileNotFoundError, NotADirectoryError):
        return []


def files_of(log: Path) -> list[Path]:
    """All files of a log, in the order of their lines. The last need not be there."""
    return [*(put_aside(log, number) for number in aside_of(log)), log]

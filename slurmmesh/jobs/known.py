"""The jobs of slurmmesh that this user can find: in the root of job folders, and in the index."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmmesh import folders
from slurmmesh.errors import UsageError
from slurmmesh.record import JobRecord, read_record
from slurmmesh.slurm.ids import JobRef


@dataclass(frozen=True)
class KnownJob:
    """A job with a folder. What it tells is read when it is asked for.

    Attributes:
        id: ``123``, ``123_4``, ``local-…``.
        given: as the user named it: maybe with a cluster, or a part of it (``123+1``).
    """

    id: str
    folder: Path
    given: JobRef | None = None

    @property
    def is_local(self) -> bool:
        """Whether it runs on one machine, without Slurm."""
        return folders.is_local_id(self.id)

    @property
    def submission(self) -> dict[str, Any]:
        """What was submitted; of a task of an array, with the whole array."""
        return _submission(self.folder.with_name(self.id.partition("_")[0]))

    @property
    def ref(self) -> JobRef:
        """How Slurm calls it, or the part of it that is meant."""
        cluster = self.submission.get("cluster")
        if self.given is not None and self.given.cluster:
            return self.given
        named = self.given.id if self.given else self.id
        return JobRef(named, cluster if isinstance(cluster, str) else "")

    @property
    def is_array(self) -> bool:
        """Whether it is a whole array, whose tasks have folders of their own."""
        options = self.submission.get("options")
        return "_" not in self.id and isinstance(options, dict) and "array" in options

    @property
    def attempts(self) -> list[Path]:
        """Its attempts, first to last."""
        return folders.attempts(self.folder)

    @functools.cached_property
    def record(self) -> JobRecord | None:
        """The record of its last attempt."""
        return read_record(folders.latest_attempt(self.folder))

    @property
    def name(self) -> str:
        """As it was submitted; else the name of its program, or nothing."""
        name = self.submission.get("name")
        if isinstance(name, str) and name:
            return name
        argv = self.record.argv if self.record else ()
        program = argv[1:2] if argv[:1] == ("-m",) else argv[:1]
        return os.path.basename(program[0]) if program else ""

    @functools.cached_property
    def changed(self) -> float:
        """When something was last made in its folder; 0 if that cannot be seen."""
        try:
            return self.folder.stat().st_mtime
        except OSError:
            return 0.0

    @functools.cached_property
    def made(self) -> tuple[float, int, int, str]:
        """Sorts jobs as they were submitted, tasks of an array by their numbers.

        No file is read for it. The time is that of what was submitted; of a local job its id's.
        """
        number, _, task = self.id.partition("_")
        when = self.changed
        with contextlib.suppress(OSError, ValueError, OverflowError):
            if self.is_local:
                clock = "-".join(number.split("-")[1:3])
                when = time.mktime(time.strptime(clock, "%Y%m%d-%H%M%S"))
            else:
                when = (self.folder.with_name(number) / folders.SUBMITTED).stat().st_mtime
        first = task.partition("-")[0].partition(",")[0].strip("[")
        return when, _number(number), _number(first), self.id

    @property
    def is_readable(self) -> bool:
        """Whether we may look into its folder: it may belong to another user."""
        return os.access(self.folder, os.R_OK | os.X_OK)


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else -1


def all_jobs(root: Path) -> list[KnownJob]:
    """All that are known, in no order. Tasks of an array stand for themselves."""
    return [KnownJob(folder.name, folder) for folder in folders.known(root)]


def newest(root: Path) -> KnownJob:
    """The job whose folder was changed last.

    Raises:
        UsageError: there is none.
    """
    jobs = all_jobs(root)
    if not jobs:
        raise UsageError(f"there is no job in {root}, nor in your index; --root names another root")
    return max(jobs, key=lambda job: (job.changed, job.id))


def find(word: str, root: Path) -> KnownJob:
    """The job that a user means: by an id in any of Slurm's forms, or by its folder.

    Raises:
        UsageError: it is no id, or no such job is known.
    """
    if "/" in word or word in (".", ".."):
        return _of_folder(Path(os.path.abspath(word)))
    ref = None if folders.is_local_id(word) else JobRef.parse(word)
    folder = folders.find(ref.folder if ref else word, root)
    if folder is None and ref is not None and ref.tasks and len(ref.tasks) == 1:
        # A task that has not started has no folder yet.
        array = folders.find(ref.number, root)
        folder = array.with_name(ref.id) if array else None
    if folder is None:
        raise UnknownJob(word, root, ref)
    return KnownJob(folder.name, folder, ref)


class UnknownJob(UsageError):
    """No job of this id is known to slurmmesh; Slurm may know one, by ``ref``."""

    def __init__(self, word: str, root: Path, ref: JobRef | None) -> None:
        self.ref = ref
        super().__init__(
            f"no job {word!r} of slurmmesh's is in {root}, nor in your index: `slurmmesh list` "
            "shows those that are, --root DIR looks elsewhere"
        )


def _of_folder(folder: Path) -> KnownJob:
    """The job of a folder, or of an attempt's in it."""
    folder = folders.job_of(folder)
    if not os.path.isdir(folder):
        raise UsageError(f"there is no folder {str(folder)!r}")
    if folders.is_job_id(folder.name):
        return KnownJob(folder.name, folder)
    raise UsageError(f"{str(folder)!r} is no job's folder: its name would be the job's id")


@functools.lru_cache(maxsize=4096)
def _submission(folder: Path) -> dict[str, Any]:
    """All tasks of an array share one."""
    return folders.submission(folder)

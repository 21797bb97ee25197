"""The files of a step: submitit's, and ours beside them.

Some are notes between processes on different nodes: that a step wants to be started again, that it
is over, that somebody wants it ended. Whoever takes such a note away has it, and nobody else does.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from submitit.core.utils import JobPaths

from slurmmesh import files


class StepPaths(JobPaths):
    """Paths of a step (or, with ``task_id``, of one of its tasks)."""

    @property
    def submission_file(self) -> Path:
        """The script that starts it; submitit has one for a whole array, we one for each step."""
        return self._own("submission.sh")

    @property
    def srun_log(self) -> Path:
        """What its srun said, in its last attempt."""
        return self._own("srun.log")

    @property
    def started(self) -> Path:
        """Written by its first task once it heeds signals: where it runs."""
        return self._own("started.json")

    @property
    def ended(self) -> Path:
        """Written when it is over for good: how it ended."""
        return self._own("ended.json")

    @property
    def requeue(self) -> Path:
        """Note of its first task: start me again."""
        return self._own("requeue")

    @property
    def timeout(self) -> Path:
        """Note to its first task: the next signal means that the time is up."""
        return self._own("timeout")

    @property
    def cancel(self) -> Path:
        """Note of a process that cannot end it itself: do not start it any more."""
        return self._own("cancel")

    def forget_results(self, tasks: int) -> None:
        """Remove what an earlier attempt of its tasks left, so that none of it is taken for new.

        Raises OSError.
        """
        for task in range(tasks):
            result = self.of_task(task).result_pickle
            result.unlink(missing_ok=True)
            draft_of(result).unlink(missing_ok=True)

    def of_task(self, task: int) -> StepPaths:
        """The paths of one of its tasks."""
        return StepPaths(self._folder, self.job_id, task)

    def refresh(self) -> None:
        """Have a network file system look again for what is in the folder."""
        files.refresh(self.folder)

    def _own(self, name: str) -> Path:
        return self.folder / f"{self.job_id}_{name}"


def draft_of(path: Path) -> Path:
    """Where submitit writes a file first. It refuses to if one was left there."""
    return path.with_name(f"{path.name}.save_tmp")


def is_there(note: Path) -> bool:
    """Whether there is a note; false too where its file system does not answer."""
    try:
        return note.exists()
    except OSError:
        return False


def take(note: Path) -> bool:
    """Take a note away; false if there is none that can be, or another process was faster."""
    try:
        note.unlink()
    except OSError:
        return False
    return True


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a small file that readers see whole or not at all. Raises OSError."""
    files.write_whole(path, json.dumps(content).encode())


def read_json(path: Path) -> dict[str, Any]:
    """What ``write_json`` wrote; empty if there is nothing that can be read."""
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}

"""How many lines of a list jobs make: an array and its tasks are looked at together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmmesh.errors import UsageError
from slurmmesh.jobs.known import KnownJob
from slurmmesh.jobs.local import may_run
from slurmmesh.jobs.views import Slurm
from slurmmesh.slurm.options import array_tasks


@dataclass(frozen=True)
class Family:
    """A job, or an array with those of its tasks that have folders."""

    jobs: Sequence[KnownJob]

    @property
    def lines(self) -> int:
        """How many lines tell of it, as far as its folders know.

        A file is read of arrays alone. Tasks that never started are told of in one line.
        """
        tasks = sum("_" in job.id for job in self.jobs)
        if not tasks:
            return 1
        return tasks + (tasks < _asked_for(self.jobs[0]))


def families(jobs: Iterable[KnownJob]) -> list[Family]:
    """All jobs, the newest first."""
    found: dict[tuple[Path, str], list[KnownJob]] = {}
    for job in jobs:
        found.setdefault((job.folder.parent, job.id.partition("_")[0]), []).append(job)
    ordered = sorted(found.values(), key=lambda own: max(job.made for job in own), reverse=True)
    return [Family(own) for own in ordered]


def newest(jobs: Iterable[KnownJob], limit: int, slurm: Slurm) -> tuple[list[KnownJob], int]:
    """Jobs for the ``limit`` newest lines, with those behind them that may still run.

    Returns them, and how many lines the others would make. Slurm has been asked for the jobs. Of
    jobs that are not among these no file is read, but what was submitted as an array: there may
    be thousands.
    """
    known = families(jobs)
    chosen: list[KnownJob] = []
    lines = taken = 0
    while lines < limit and taken < len(known):
        lines += known[taken].lines
        chosen += known[taken].jobs
        taken += 1
    slurm.ask(chosen)
    older = known[taken:]
    live = {job.folder for job in slurm.in_queue(job for own in older for job in own.jobs)}
    left_out = 0
    for own in older:
        if any(job.folder in live or (job.is_local and may_run(job)) for job in own.jobs):
            chosen += own.jobs
        else:
            left_out += own.lines
    return chosen, left_out


def _asked_for(job: KnownJob) -> int:
    """How many tasks the array of a task was submitted with; 0 if that is not known."""
    options = job.submission.get("options")
    try:
        return len(array_tasks(str(options["array"]))) if isinstance(options, dict) else 0
    except (KeyError, UsageError):
        return 0

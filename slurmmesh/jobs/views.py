"""Jobs as they are now: what their folders tell, and what Slurm says, in few questions."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmmesh.errors import MissingDependencyError, SubmitError, UsageError
from slurmmesh.jobs.known import KnownJob, UnknownJob, find
from slurmmesh.jobs.local import local_status
from slurmmesh.record import JobRecord, read_record
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.hostlists import compress
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.jobinfo import JobInfo, leading, select
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.status import (
    JobStatus,
    is_another,
    of_folder,
    submitted_at,
    tasks_of,
    tasks_with_folders,
)

# What Slurm sets for a started job that asked for no limit, in a partition that has none.
_YEAR_S = 365 * 86400.0


@dataclass(frozen=True)
class View:
    """One job, one task of an array, or several tasks that wait for the same.

    Attributes:
        id: as it is shown: ``123``, ``123_4``, ``123_[5-9]``.
        job: whose folder it is, or will be.
        info: what Slurm says; None if it does not know it, or knows another by its number.
        record: of its last attempt.
    """

    id: str
    job: KnownJob
    status: JobStatus
    info: JobInfo | None
    record: JobRecord | None

    @property
    def is_over(self) -> bool:
        """Whether it does nothing more, as far as is known.

        While Slurm has it in a state that is not known here, it is not over.
        """
        if self.info is not None:
            return self.info.state.is_over
        return self.status.state.is_over or self.status.state is JobState.UNKNOWN

    @property
    def nodes(self) -> int | None:
        """How many it has, or asks for; spares included."""
        if self.info and self.info.node_count:
            return self.info.node_count
        if self.record and self.record.nodes is not None:
            return self.record.nodes + (self.record.spares or 0)
        nodes, spares = self.job.submission.get("nodes"), self.job.submission.get("spares")
        if not isinstance(nodes, int):
            return None
        return nodes + (spares if isinstance(spares, int) else 0)

    @property
    def submitted(self) -> float | None:
        """When it was submitted, in seconds since the epoch."""
        known = submitted_at(self.job.folder)
        if known is None and self.info:
            known = self.info.submitted
        return known if known is not None or self.record is None else self.record.started

    @property
    def started(self) -> float | None:
        """When its last attempt began; while it waits None."""
        if self.status.state.is_waiting:
            return None
        if self.info and self.info.started is not None:
            return self.info.started
        return self.record.started if self.record else None

    @property
    def ended(self) -> float | None:
        """When it ended, if that is known."""
        if not self.status.state.is_over:
            return None
        if self.info and self.info.ended is not None:
            return self.info.ended
        return self.record.ended if self.record else None

    def elapsed(self, now: float) -> float | None:
        """Seconds that its last attempt has run, or ran."""
        if self.info and self.info.time_used_s is not None and not self.status.state.is_waiting:
            return self.info.time_used_s
        if self.started is None:
            return None
        if self.ended is not None:
            return max(0.0, self.ended - self.started)
        return max(0.0, now - self.started) if self.status.state is JobState.RUNNING else None

    @property
    def time_limit(self) -> float | None:
        """Seconds; infinite if there is none, None if it is not known."""
        limit = self.info.time_limit_s if self.info else None
        if limit != _YEAR_S:
            return limit
        options = self.job.submission.get("options")
        asked = isinstance(options, dict) and "time" in options
        return limit if asked else math.inf


class Slurm:
    """What Slurm says of many jobs, asked once for each cluster.

    One cluster that does not answer is no reason not to tell of the others.
    """

    def __init__(self, client: SlurmClient) -> None:
        self._client = client
        self._known: dict[JobRef, JobInfo] = {}
        self._clusters = {""}
        self.silent: dict[str, str] = {}
        """Cluster to the reason why it was not heard."""

    def ask(self, jobs: Iterable[KnownJob]) -> None:
        """Ask for these jobs; what was heard before stays."""
        clusters: dict[str, set[JobRef]] = {}
        for ref in (job.ref for job in jobs if not job.is_local):
            # One question for all tasks of an array.
            clusters.setdefault(ref.cluster, set()).add(JobRef(ref.number, ref.cluster))
        self._clusters |= clusters.keys()
        for cluster, refs in clusters.items():
            self._hear(cluster, functools.partial(self._client.jobs, refs))

    def in_queue(self, jobs: Iterable[KnownJob]) -> list[KnownJob]:
        """Those that wait or run, by one question to each cluster that others were asked for of.

        Their folders are left unread. Jobs on one machine are not among them.
        """
        of_slurm = [job for job in jobs if not job.is_local]
        live: set[str] = set()
        for cluster in self._clusters - self.silent.keys() if of_slurm else ():
            for ref in self._hear(cluster, functools.partial(self._client.queue, cluster)):
                live |= {ref.id, ref.number}
        return [job for job in of_slurm if job.id in live]

    def _hear(
        self, cluster: str, question: Callable[[], Mapping[JobRef, JobInfo]]
    ) -> Mapping[JobRef, JobInfo]:
        """The answer, which is kept; none if the cluster does not answer."""
        try:
            answer = question()
        except SubmitError as error:
            self.silent[cluster] = error.message
        except MissingDependencyError:
            self.silent[cluster] = "Slurm's commands are not installed here"
        else:
            self._known.update(answer)
            return answer
        return {}

    def knows(self, ref: JobRef) -> bool:
        """Whether Slurm knows a job of which there is no folder; false if it does not answer."""
        try:
            return bool(self._client.jobs([ref]))
        except (SubmitError, MissingDependencyError):
            return False

    def of(self, ref: JobRef) -> dict[JobRef, JobInfo]:
        """What was heard of a job: itself, its tasks, its components."""
        return select(ref, self._known)

    def silence(self, ref: JobRef) -> str:
        """Why nothing was heard of the job's cluster; empty if it answered."""
        return self.silent.get(ref.cluster, "")


def find_all(words: Sequence[str], root: Path, slurm: Slurm) -> list[KnownJob]:
    """The jobs that a user names.

    Raises:
        UsageError: one is no job of slurmmesh's; says whether Slurm knows it.
    """
    jobs = []
    for word in words:
        try:
            jobs.append(find(word, root))
        except UnknownJob as error:
            if not error.ref or not slurm.knows(error.ref):
                raise
            raise UsageError(
                f"{error}. Slurm knows it: `scontrol show job {error.ref.id}` tells of it, "
                f"`scancel {error.ref.id}` ends it"
            ) from None
    return jobs


def view_jobs(jobs: Sequence[KnownJob], slurm: Slurm) -> list[View]:
    """Look at jobs, each once. An array is told of by its tasks, where it has any.

    ``slurm`` has been asked for them.
    """
    views: dict[str, View] = {}
    for job in jobs:
        for view in view_job(job, slurm):
            # A task is found by its own folder and by its array's; the first knows more.
            if view.id not in views or view.job is job:
                views[view.id] = view
    return list(views.values())


def view_job(job: KnownJob, slurm: Slurm) -> list[View]:
    """Look at one job: one view, or for an array one for each task."""
    if job.is_local:
        return [View(job.id, job, local_status(job.record), None, job.record)]
    found = slurm.of(job.ref)
    tasks = tasks_of(job.folder, found) if job.ref.tasks is None and job.is_array else {}
    if not tasks:
        return [_view(job, job.id, leading(found.values()), slurm)]
    views = []
    for name, info in _together(tasks, tasks_with_folders(job.folder)).items():
        ref = JobRef(name, job.ref.cluster)
        # Tasks that are told of as one have no folder; the name of their list can be too long.
        own = f"{ref.number}_{(ref.tasks or (0,))[0]}"
        task = KnownJob(name, job.folder.with_name(own), ref)
        views.append(_view(task, name, info, slurm))
    return views


def _view(job: KnownJob, name: str, info: JobInfo | None, slurm: Slurm) -> View:
    status = of_folder(name, info, job.folder, slurm.silence(job.ref))
    if status.state is JobState.UNKNOWN and not job.is_readable and os.path.exists(job.folder):
        status = JobStatus(JobState.UNKNOWN, "its folder belongs to another user")
    own = None if info and is_another(info, submitted_at(job.folder)) else info
    record = read_record(job.attempts[-1]) if not (own and own.state.is_waiting) else None
    return View(name, job, status, own, record)


def _together(
    tasks: Mapping[str, JobInfo | None], started: Collection[str]
) -> dict[str, JobInfo | None]:
    """The tasks of an array; those that wait for the same, or never started, as one.

    That one is called ``123_[5-9]``.
    """
    alike: dict[tuple[str, str], list[str]] = {}
    for name, info in tasks.items():
        if info and info.state.is_waiting and not info.restarts:
            alike.setdefault((info.state.value, info.reason), []).append(name)
        elif info is None and name not in started:
            alike.setdefault(("", ""), []).append(name)
    merged = dict(tasks)
    for names in alike.values():
        if len(names) > 1:
            first = merged[names[0]]
            for name in names:
                del merged[name]
            merged[_compressed(names)] = first
    return merged


def _compressed(names: Sequence[str]) -> str:
    array = names[0].partition("_")[0]
    numbers = sorted(int(name.partition("_")[2]) for name in names)
    return compress([f"{array}_{number}" for number in numbers])

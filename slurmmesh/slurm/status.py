"""How a job is: Slurm's word while it knows the job, then the record in its folder.

What nobody vouches for is UNKNOWN, never success.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmmesh import folders
from slurmmesh.errors import EXIT_OK, UsageError
from slurmmesh.record import JobRecord, read_record
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.jobinfo import JobInfo, leading
from slurmmesh.slurm.options import array_tasks
from slurmmesh.slurm.outcome import RUNS_ELSEWHERE, explain_waiting, judge, left_controller
from slurmmesh.slurm.states import JobState

# How much the clocks of two machines may disagree.
_CLOCKS_DIFFER_S = 600.0
# States that tell nothing of how a job is.
_UNTOLD = {
    JobState.UNKNOWN: "Slurm has it in a state that is not known here",
    JobState.REVOKED: f"it {RUNS_ELSEWHERE}",
}
# Ends whose word says more than "failed"; the program's own code does not change them.
_SAYS_ALL = frozenset(JobState) - {JobState.COMPLETED, JobState.FAILED, JobState.UNKNOWN}


@dataclass(frozen=True)
class JobStatus:
    """How a job is.

    Attributes:
        why: in words: what it waits for, how it ended, why nothing is known; empty while all is
            plain.
        exit_code: of the program, as a shell tells it; None until it has ended, and where nobody
            knows it.
        nodes: host list of its allocation; empty if there is none, or it is not known any more.
        restarts: how often it was started again.
        by_slurm: whether Slurm still knows it; else the folder's record is all there is.
    """

    state: JobState
    why: str = ""
    exit_code: int | None = None
    nodes: str = ""
    restarts: int = 0
    by_slurm: bool = False


def status_of(
    job: str,
    info: JobInfo | None,
    record: JobRecord | None,
    *,
    restarts: int = 0,
    silence: str = "",
    has_folder: bool = True,
) -> JobStatus:
    """The status of a job of Slurm's.

    Args:
        job: its id, for the words.
        info: what Slurm says; None if it does not know the job any more.
        record: of its last attempt; None if there is none.
        restarts: as its folder tells, for a job that Slurm does not know.
        silence: why Slurm was not heard; empty if it was.
        has_folder: whether it has a folder, so that it may have started.
    """
    has_ended = record is not None and record.has_ended
    if info is not None and info.state in _UNTOLD and not has_ended:
        why = _UNTOLD[info.state]
        return JobStatus(info.state, why, None, info.nodes, info.restarts, by_slurm=True)
    if info is None or info.state in _UNTOLD:
        gone = silence or "Slurm does not know it any more"
        if record is None or not has_ended:
            what = "its folder has no record of its end" if record else "nothing tells of a start"
            why = f"{gone}, and {what if has_folder else 'it has no folder'}"
            return JobStatus(JobState.UNKNOWN, why, restarts=restarts)
        return _by_record(job, record, restarts)
    if not info.state.is_over:
        why = explain_waiting(info) if info.state.is_waiting else ""
        if left_controller(info):
            why = f"{info.batch_host}, on which its controller ran, is not among its nodes any more"
        code = record.exit_code if record and not info.state.is_waiting else None
        return JobStatus(info.state, why, code, info.nodes, info.restarts, by_slurm=True)
    outcome = judge(job, info, record)
    why = outcome.message.removeprefix(f"job {job}").removeprefix(":").strip()
    own = record.exit_code if record else None
    if info.state in _SAYS_ALL:
        return JobStatus(info.state, why, own, info.nodes, info.restarts, by_slurm=True)
    ended_well = outcome.exit_code == EXIT_OK
    state = JobState.COMPLETED if ended_well else JobState.FAILED
    return JobStatus(state, why, outcome.exit_code, info.nodes, info.restarts, by_slurm=True)


def status_of_parts(parts: Mapping[str, JobStatus]) -> JobStatus:
    """The status of an array from those of its tasks: the first of what matters most.

    That is: a task that runs, one that waits, one that failed, one of which nothing is known.
    """
    if not parts:
        return JobStatus(JobState.UNKNOWN, "no task of it has a folder, and Slurm knows none")
    name, first = min(parts.items(), key=lambda part: _urgency(part[1]))
    counts: dict[str, int] = {}
    for status in parts.values():
        counts[status.state.value] = counts.get(status.state.value, 0) + 1
    told = ", ".join(f"{count} {state}" for state, count in counts.items())
    why = f"{told}; {name}: {first.why}" if first.why else told
    return JobStatus(first.state, why, first.exit_code, by_slurm=first.by_slurm)


def ask(client: SlurmClient, ref: JobRef, folder: Path) -> JobStatus:
    """Ask Slurm and a job's folder. An array is told of as a whole, from all of its tasks.

    Raises:
        SubmitError: Slurm does not answer.
    """
    found = client.jobs([ref])
    if ref.tasks is None and (tasks := tasks_of(folder, found)):
        return status_of_parts(
            {name: of_folder(name, info, folder.with_name(name)) for name, info in tasks.items()}
        )
    return of_folder(str(ref), leading(found.values()), folder)


def tasks_of(folder: Path, found: Mapping[JobRef, JobInfo]) -> dict[str, JobInfo | None]:
    """The tasks of the array with this folder: as submitted, with folders, and as Slurm knows.

    A task that was cancelled before it started has no folder, and Slurm forgets it at once.
    """
    tasks: dict[str, JobInfo | None] = dict.fromkeys(
        [*_tasks_submitted(folder), *tasks_with_folders(folder)]
    )
    return tasks | {ref.id: info for ref, info in found.items() if ref.tasks is not None}


def _tasks_submitted(folder: Path) -> list[str]:
    options = folders.submission(folder).get("options")
    spec = options.get("array") if isinstance(options, dict) else None
    try:
        tasks = array_tasks(str(spec)) if spec else ()
    except UsageError:
        return []
    return [f"{folder.name}_{task}" for task in tasks]


def tasks_with_folders(folder: Path) -> list[str]:
    """The ids of an array's tasks that have a folder beside the array's own, in order."""
    pattern = re.compile(rf"{re.escape(folder.name)}_(\d+)", re.ASCII)
    with contextlib.suppress(OSError), os.scandir(folder.parent) as entries:
        found = [match for entry in entries if (match := pattern.fullmatch(entry.name))]
        return [match[0] for match in sorted(found, key=lambda match: int(match[1]))]
    return []


def of_folder(job: str, info: JobInfo | None, folder: Path, silence: str = "") -> JobStatus:
    """The status of a job of Slurm's that has, or will have, this folder."""
    if info and is_another(info, submitted_at(folder)):
        info, silence = None, "Slurm now knows another job by its number"
    attempts = folders.attempts(folder)
    attempt = folders.attempt_folder(folder, info.restarts) if info else attempts[-1]
    record = read_record(attempt)
    restarts, has_folder = len(attempts) - 1, os.path.isdir(folder)
    return status_of(job, info, record, restarts=restarts, silence=silence, has_folder=has_folder)


def is_another(info: JobInfo, submitted: float | None) -> bool:
    """Whether what Slurm tells is of a later job: a cluster set up anew counts from the beginning.

    A requeue, too, sets the time of the submit.
    """
    if submitted is None or info.submitted is None or info.restarts:
        return False
    return abs(info.submitted - submitted) > _CLOCKS_DIFFER_S


def submitted_at(folder: Path) -> float | None:
    """When a job was submitted, as its folder, or that of its array, tells."""
    array = folder.with_name(folder.name.partition("_")[0])
    when = folders.submission(array).get("submitted")
    return float(when) if isinstance(when, (int, float)) and 0 <= when < 1e12 else None


def _urgency(status: JobStatus) -> int:
    state = status.state
    if state.is_over:
        return 4 if state.is_success else 2
    if state is JobState.UNKNOWN:
        return 3
    return 1 if state.is_waiting else 0


def _by_record(job: str, record: JobRecord, restarts: int) -> JobStatus:
    message = judge(job, None, record).message.removeprefix(f"job {job}").strip()
    state = JobState.COMPLETED if record.exit_code == EXIT_OK else JobState.FAILED
    return JobStatus(state, message, record.exit_code, restarts=restarts)

"""What Slurm tells about a job, as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slurmmesh.slurm import reasons
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.states import JobState


@dataclass(frozen=True)
class JobInfo:
    """What squeue tells about a job. Moments are seconds since 1970, spans seconds; None: unknown.

    Attributes:
        reason: why it waits or ended, in Slurm's words.
        nodes: host list of its allocation; empty if it never had one.
        exit_code, signal: of the batch script, once the job is over; else 0.
        restarts: how often Slurm started it again.
        batch_host: the node of its batch script, that is of the controller, also after Slurm has
            dropped that node from the allocation; empty if it has not started.
        raw_id: the number that the job itself knows as SLURM_JOB_ID. Tasks of an array and
            components of a heterogeneous job have one of their own.
        node_count: nodes that it has, or asks for while it waits.
        time_limit_s: infinite if there is none.
        started: while it waits, when Slurm expects to start it.
        ended: while it runs, when its time limit is reached.
        stdout: the file of its output as it was given to sbatch, maybe with sbatch's patterns.
        requeue: whether Slurm may start it again.
        cluster: the one that it is in, whether it was asked for by name or not.
    """

    state: JobState
    reason: str = ""
    nodes: str = ""
    exit_code: int = 0
    signal: int = 0
    restarts: int = 0
    batch_host: str = ""
    raw_id: str = ""
    name: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    qos: str = ""
    node_count: int = 0
    time_used_s: float | None = None
    time_limit_s: float | None = None
    submitted: float | None = None
    started: float | None = None
    ended: float | None = None
    work_dir: str = ""
    stdout: str = ""
    requeue: bool = False
    cluster: str = ""


def exit_status(text: str) -> tuple[int, int]:
    """Exit code and signal of a wait status (``768``), or of ``3:0``; zeros for anything else."""
    code, colon, signal = text.strip().partition(":")
    if not (code.isdecimal() and (signal.isdecimal() or not colon)):
        return 0, 0
    return (int(code), int(signal)) if colon else (int(code) >> 8 & 0xFF, int(code) & 0x7F)


def select(ref: JobRef, jobs: Mapping[JobRef, JobInfo]) -> dict[JobRef, JobInfo]:
    """Those of ``jobs`` that ``ref`` names: itself, its tasks, its components."""
    return {
        job: info
        for job, info in jobs.items()
        if ref.covers(job) or (ref.id == info.raw_id and ref.cluster == job.cluster)
    }


def leading(infos: Iterable[JobInfo]) -> JobInfo | None:
    """The one that tells how all of them stand together; None if there is none.

    The first that runs, else that waits, else that did not end well. So an array is over when its
    last task is, and a success if all its tasks were.
    """

    return min(infos, key=_urgency, default=None)


def by_ref(rows: Iterable[tuple[JobRef, JobInfo]]) -> dict[JobRef, JobInfo]:
    """The jobs of a table, in which a federated job may have a row for each of its siblings.

    Of those the one counts that runs, or ran; while all wait, one that can start.
    """

    def rank(info: JobInfo) -> tuple[bool, int, bool]:
        return info.state is JobState.REVOKED, _urgency(info), reasons.is_for_ever(info.reason)

    jobs: dict[JobRef, JobInfo] = {}
    for ref, info in rows:
        jobs[ref] = min(jobs.get(ref, info), info, key=rank)
    return jobs


def _urgency(info: JobInfo) -> int:
    state = info.state
    if not state.is_over:
        return 1 if state.is_waiting else 0
    return 3 if state.is_success else 2

"""A job in Slurm's queue: submitted, and watched if that is asked for."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from slurmmesh.config import Settings
from slurmmesh.errors import SubmitError
from slurmmesh.slurm.client import JobRef, SlurmClient
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.template import command_line_options, render
from slurmmesh.slurm.watch import JobWatch
from slurmmesh.submit.folders import EarlierJobs
from slurmmesh.submit.interrupts import Interrupts

_LOOK_EVERY_S = 0.1


def submit(
    job: SlurmJob, settings: Settings, interrupts: Interrupts, tell: Callable[[str], None]
) -> JobRef:
    """Put a job in the queue.

    Raises:
        SubmitError: Slurm is down, refused it, or could never start it.
        MissingDependencyError: Slurm is not installed.
        UsageError: a folder's name that Slurm cannot write to.
    """
    client = SlurmClient(settings, interrupted=lambda: bool(interrupts))
    client.wait_until_up()
    _check_size(job, client)
    earlier = EarlierJobs(job.job_root)
    ref = client.submit(render(job), command_line_options(job), name=job.name, warn=tell)
    earlier.set_aside(ref.id)
    if not interrupts:
        watch(ref, job.job_root / ref.id, settings, lambda line: None).look()
    return ref


def _check_size(job: SlurmJob, client: SlurmClient) -> None:
    """Refuse a job that is larger than its partition: many sites let it wait for ever."""
    names = (job.partition or "").split(",")
    sizes = client.partition_sizes()
    known = [sizes[name] for name in names if name in sizes]
    if len(known) == len(names) and job.nodes_with_spares > max(known):
        where = f"partition {job.partition}" if job.partition else "the default partition"
        raise SubmitError(
            f"{where} has {max(known)} nodes, but {job.nodes_with_spares} are asked for "
            "(--nodes and --spares together)",
            advice="`sinfo -o '%P %D'` lists the partitions; give one with --partition.",
        )


def watch(ref: JobRef, folder: Path, settings: Settings, tell: Callable[[str], None]) -> JobWatch:
    """A watch over a submitted job."""
    return JobWatch(SlurmClient(settings), ref, folder, tell)


def wait(
    job: JobWatch,
    folder: Path,
    interrupts: Interrupts,
    follow: Callable[[Path, Callable[[], bool]], None] | None,
) -> None:
    """Return when the job is over, or at the first interrupt.

    ``follow``, if given, shows the job folder until the function it gets returns true.

    Raises:
        SubmitError: the job can never start; it has been cancelled.
    """

    def enough() -> bool:
        return bool(interrupts) or job.is_over()

    while not enough() and not (follow and job.has_started()):
        time.sleep(_LOOK_EVERY_S)
    if follow and job.has_started():
        follow(folder, enough)
        while not enough():  # it could show no more
            time.sleep(_LOOK_EVERY_S)


def cancel(
    ref: JobRef, settings: Settings, interrupts: Interrupts, tell: Callable[[str], None]
) -> None:
    """Cancel a job and wait until Slurm has ended it, for ``stop_grace_s`` at most.

    Another interrupt ends the waiting.
    """
    seen = len(interrupts.received)
    client = SlurmClient(settings)
    tell(f"cancelling job {ref}")
    try:
        client.cancel(ref)
        deadline = time.monotonic() + settings.stop_grace_s
        while time.monotonic() < deadline and len(interrupts.received) == seen:
            info = client.job(ref)
            if info is None or info.state.is_over:
                tell(f"job {ref} is cancelled")
                return
            time.sleep(_LOOK_EVERY_S * 2)
    except SubmitError as error:
        tell(f"job {ref} may still be there: {error}")
        return
    tell(f"job {ref} is being cancelled; Slurm has not yet ended it (squeue --jobs {ref.id})")

"""Jobs on one machine, without Slurm: whether they run, and how they are ended."""

from __future__ import annotations

import os
import signal

from slurmmesh import folders
from slurmmesh.errors import EXIT_OK, UsageError
from slurmmesh.jobs.known import KnownJob
from slurmmesh.record import JobRecord, read_record
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.status import JobStatus


def local_status(record: JobRecord | None) -> JobStatus:
    """How a local job is: by its record, and by its controller's process."""
    if record is None:
        return JobStatus(JobState.UNKNOWN, "its folder has no record of a start")
    code = record.exit_code
    if code is not None:
        if code == EXIT_OK:
            return JobStatus(JobState.COMPLETED, "ended well", code)
        return JobStatus(JobState.FAILED, f"failed with exit code {code}", code)
    alive = record.is_alive()
    if alive:
        return JobStatus(JobState.RUNNING, nodes=record.host)
    if alive is None:
        where = record.host or "elsewhere"
        return JobStatus(JobState.UNKNOWN, f"it was started on {where}; that is not seen from here")
    return JobStatus(
        JobState.UNKNOWN,
        f"its controller (process {record.pid}) is gone and left no record of how it ended",
    )


def may_run(job: KnownJob) -> bool:
    """Whether a local job may run on this machine, told by its id alone."""
    maker = folders.maker_of(job.id)
    return maker is not None and os.path.exists(f"/proc/{maker}")


def has_ended(job: KnownJob) -> bool:
    """Whether a local job's controller runs no more, as seen from here."""
    record = read_record(job.folder)
    return record is None or record.has_ended or not record.is_alive()


def send(job: KnownJob, signum: int) -> bool:
    """Send a signal to a local job's controller; SIGTERM has it end the job in order.

    Returns whether there was one. It is told from any other process by the time of its start.

    Raises:
        UsageError: it cannot be seen from here, or is not ours.
    """
    record = read_record(job.folder)
    status = local_status(record)
    if record is None or record.has_ended:
        return False
    alive = record.is_alive()
    if alive is None:
        raise UsageError(f"{job.id} cannot be cancelled here: {status.why}")
    if not alive:
        return False
    try:
        # The descriptor stands for this process, also if it ends and another gets its pid.
        descriptor = os.pidfd_open(record.pid)
    except ProcessLookupError:
        return False
    try:
        if not record.is_alive():
            return False
        if os.stat(f"/proc/{record.pid}").st_uid != job.folder.stat().st_uid:
            raise UsageError(f"{job.id}: process {record.pid} does not belong to the job's owner")
        signal.pidfd_send_signal(descriptor, signum)
    except (ProcessLookupError, FileNotFoundError):
        return False
    except PermissionError:
        raise UsageError(f"{job.id} belongs to another user") from None
    finally:
        os.close(descriptor)
    return True

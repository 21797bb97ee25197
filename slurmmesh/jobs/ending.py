"""Whether a job has ended, asked often and cheaply, by one who only looks on."""

from __future__ import annotations

import time

from slurmmesh.errors import MissingDependencyError, SubmitError
from slurmmesh.jobs.known import KnownJob
from slurmmesh.jobs.local import local_status, may_run
from slurmmesh.record import read_record
from slurmmesh.slurm import status
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.status import JobStatus

_FIRST_INTERVAL_S = 1.0
_LONGEST_INTERVAL_S = 10.0
# A record of the end needs Slurm's word that nothing follows it; but not for longer than this.
_CONFIRM_INTERVAL_S = 0.5
_CONFIRM_FOR_S = 10.0


class Ending:
    """Looks at one job until it is over.

    Attributes:
        status: as it was when last looked at; None before.
        silence: why Slurm was not heard at the last question; empty if it was.
    """

    def __init__(self, job: KnownJob, client: SlurmClient) -> None:
        self.status: JobStatus | None = None
        self.silence = ""
        self._job = job
        self._client = client
        self._interval_s = _FIRST_INTERVAL_S
        self._next_question = time.monotonic()
        self._record_since: float | None = None

    def is_over(self) -> bool:
        """Whether the job will do nothing more. Slurm's silence ends nothing."""
        if self._job.is_local:
            return self._local_is_over()
        now = time.monotonic()
        record = read_record(self._job.attempts[-1])
        has_record = record is not None and record.has_ended
        if not has_record:
            self._record_since = None
        elif self._record_since is None:
            self._record_since = self._next_question = now
        if now < self._next_question:
            return False
        answered = self._ask()
        pause = _CONFIRM_INTERVAL_S if has_record else self._interval_s
        self._next_question = time.monotonic() + pause
        self._interval_s = min(self._interval_s * 1.5, _LONGEST_INTERVAL_S)
        confirmed = self._record_since is not None and now > self._record_since + _CONFIRM_FOR_S
        if not answered or self.status is None:
            return confirmed
        if self.status.by_slurm and not self.status.state.is_over:
            return confirmed and self.status.state is JobState.COMPLETING
        return True

    def _ask(self) -> bool:
        try:
            self.status = status.ask(self._client, self._job.ref, self._job.folder)
        except SubmitError as error:
            self.silence = error.message
        except MissingDependencyError:
            self.silence = "Slurm's commands are not installed here"
        else:
            self.silence = ""
        return not self.silence

    def _local_is_over(self) -> bool:
        record = read_record(self._job.folder)
        self.status = local_status(record)
        if record is None:  # it may be about to start
            return not may_run(self._job)
        return self.status.state is not JobState.RUNNING

"""Watching a job until it is over, with few questions to Slurm."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from slurmmesh.errors import HostListError, SubmitError
from slurmmesh.folders import attempt_folder
from slurmmesh.slurm.array_watch import ArrayWatch
from slurmmesh.slurm.client import JobInfo, JobRef, SlurmClient
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.options import array_tasks
from slurmmesh.slurm.outcome import Outcome, explain_waiting, judge, never_starts, read_record
from slurmmesh.slurm.states import JobState

_LOOK_EVERY_S = 0.1
_FIRST_INTERVAL_S = 0.5
_LONGEST_INTERVAL_S = 5.0
# When the program has said that it ended, Slurm is asked this often and this long to confirm it.
_CONFIRM_INTERVAL_S = 0.2
_CONFIRM_FOR_S = 10.0


def attempt_is_open(info: JobInfo, requeue: bool) -> bool:
    """Whether an attempt's record of its end is not the job's: Slurm has more to do."""
    ending = info.state is JobState.COMPLETING and requeue
    return info.state.is_waiting or ending


class JobWatch:
    """The life of one job, from what its folder and Slurm tell.

    Slurm's silence ends nothing: the job goes on without slurmctld, so the watch does too.

    Args:
        folder: the job's; it has one folder for each attempt.
        tell: gets a line for each change.
        requeue: the job asked Slurm to start it again when it must.

    Attributes:
        attempt: the folder of the attempt that runs, or ran last.
        outcome: how the job ended; None until it has.
    """

    def __init__(
        self,
        client: SlurmClient,
        ref: JobRef,
        folder: Path,
        tell: Callable[[str], None],
        requeue: bool = False,
    ) -> None:
        self.outcome: Outcome | None = None
        self.attempt = attempt_folder(folder, 0)
        self._client = client
        self._ref = ref
        self._folder = folder
        self._tell = tell
        self._requeue = requeue
        self._told = ""
        self._info: JobInfo | None = None
        self._interval_s = _FIRST_INTERVAL_S
        self._next_question = time.monotonic()
        self._confirm_until: float | None = None
        self._controller_node = ""

    @property
    def log(self) -> Path:
        """What the job has to say: its controller's output."""
        return self.attempt / "controller.log"

    def has_started(self) -> bool:
        """Whether the attempt's folder is there; its logs can be followed from then on."""
        return self.attempt.is_dir()

    def is_over(self) -> bool:
        """Whether the job has ended; then ``outcome`` is set. Cheap: call it often.

        Raises:
            SubmitError: the job can never start; it has been cancelled.
        """
        if self.outcome is not None:
            return True
        ended = self._has_record_of_end()
        now = time.monotonic()
        if ended and self._confirm_until is None:
            self._confirm_until = now + _CONFIRM_FOR_S
            self._next_question = now
        if now < self._next_question:
            return False
        answered = self.look()
        if answered and self._info and self._lost_controller(self._info):
            return self._give_up(self._info)
        confirmed = answered and (self._info is None or self._info.state.is_over)
        if confirmed or (self._confirm_until is not None and now > self._confirm_until):
            # The record may have come between the two looks.
            self.outcome = judge(str(self._ref), self._info, read_record(self.attempt))
            return True
        self._plan_next_question(self._has_record_of_end())
        return False

    def _has_record_of_end(self) -> bool:
        record = read_record(self.attempt)
        return record is not None and record.exit_code is not None

    def look(self) -> bool:
        """Ask Slurm once, out of turn; returns whether it answered.

        Raises:
            SubmitError: the job waits for what will not come; it has been cancelled.
        """
        try:
            self._info = self._client.job(self._ref)
        except SubmitError as error:
            self._say(f"{error.message}; the job does not need it, so the watch goes on")
            return False
        if self._info is None:
            return True
        self._follow_attempt(self._info)
        if never_starts(self._info):
            self._client.cancel(self._ref)
            raise SubmitError(
                f"job {self._ref} can never start, so it was cancelled",
                slurm_message=self._info.reason,
                advice=explain_waiting(self._info),
            )
        self._say_state(self._info)
        return True

    def _follow_attempt(self, info: JobInfo) -> None:
        """Look at the folder of the attempt that Slurm is at."""
        attempt = attempt_folder(self._folder, info.restarts)
        if attempt != self.attempt:
            self.attempt = attempt
            self._controller_node = ""
            self._say(f"job {self._ref} was requeued: attempt {info.restarts}")
        if attempt_is_open(info, self._requeue):
            self._confirm_until = None

    def _lost_controller(self, info: JobInfo) -> bool:
        """Whether Slurm has dropped the controller's node from a job that it lets run on."""
        if info.state is not JobState.RUNNING or not info.batch_host:
            return False
        try:
            nodes = expand(info.nodes)
        except HostListError:
            return False
        if info.batch_host in nodes:
            self._controller_node = info.batch_host
            return False
        # Only a node that was seen there before can have been dropped.
        return info.batch_host == self._controller_node

    def _give_up(self, info: JobInfo) -> bool:
        """End a job without its controller, which still holds nodes; whether it is over by that."""
        try:
            if self._requeue:
                self._client.requeue(self._ref)
            else:
                self._client.cancel(self._ref)
        except SubmitError as error:
            self._say(f"job {self._ref} has lost its controller, but still runs: {error.message}")
            self._plan_next_question(False)
            return False
        if self._requeue:
            self._say(f"{info.batch_host}, on which its controller ran, is down: requeued")
            self._plan_next_question(False)
            return False
        self._say(
            f"{info.batch_host}, on which its controller ran, is down: job {self._ref} was "
            "cancelled"
        )
        lost = replace(info, state=JobState.NODE_FAIL)
        self.outcome = judge(str(self._ref), lost, read_record(self.attempt))
        return True

    def _say_state(self, info: JobInfo) -> None:
        if info.state.is_waiting and info.reason in ("", "None"):
            return  # Slurm has not looked at it yet
        if info.state.is_waiting:
            self._say(f"job {self._ref} is waiting: {explain_waiting(info)}")
        elif not info.state.is_over and info.nodes:
            self._say(f"job {self._ref} is running on {info.nodes}")

    def _say(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._tell(line)

    def _plan_next_question(self, ended: bool) -> None:
        if ended:
            self._interval_s = _CONFIRM_INTERVAL_S
        else:
            self._interval_s = min(self._interval_s * 1.5, _LONGEST_INTERVAL_S)
        self._next_question = time.monotonic() + self._interval_s


class Watch(Protocol):
    """The life of a job, or of all tasks of an array."""

    outcome: Outcome | None

    @property
    def log(self) -> Path:
        """Where to read how it went."""

    def is_over(self) -> bool:
        """Whether it has ended; then ``outcome`` is set. Raises SubmitError if it cannot start."""

    def look(self) -> bool:
        """Ask Slurm once, out of turn. Raises SubmitError if it cannot start."""


def watch_of(client: SlurmClient, job: SlurmJob, tell: Callable[[str], None]) -> Watch:
    """A watch over a submitted job."""
    ref = JobRef(job.id, job.cluster)
    if job.array is not None:
        return ArrayWatch(client, ref, job.folder, array_tasks(str(job.array)), tell)
    return JobWatch(client, ref, job.folder, tell, job.requeue)


def wait(watch: Watch, timeout_s: float | None = None) -> Outcome | None:
    """Wait for the end; None if it has not come within ``timeout_s``.

    Raises:
        SubmitError: it can never start; it has been cancelled.
    """
    deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while not watch.is_over():
        if time.monotonic() > deadline:
            return None
        time.sleep(_LOOK_EVERY_S)
    return watch.outcome

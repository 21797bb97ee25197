"""What is known of one job, or of one task of an array, until it has ended."""

from __future__ import annotations

from dataclasses import replace
from enum import Enum
from pathlib import Path

from slurmmesh.errors import EXIT_SUBMIT_FAILED
from slurmmesh.folders import attempt_folder
from slurmmesh.record import read_record
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.outcome import Outcome, explain_waiting, judge, left_controller, never_starts
from slurmmesh.slurm.states import JobState

# When the program has said that it ended, Slurm may take this long to say that the job did.
CONFIRM_FOR_S = 10.0


class Need(Enum):
    """What a job needs from whoever watches it."""

    NOTHING = 0
    # It can never start: whoever put it into the queue takes it out.
    CANCEL = 1
    # Its controller's node is gone, and it still holds the others.
    FREE = 2


class Life:
    """One job. What Slurm tells of it is heard; its record is read.

    Args:
        name: its id, for the words.
        folder: it has one folder for each attempt.
        requeue: whether Slurm may start it again.

    Attributes:
        attempt: the folder of the attempt that runs, or ran last.
        info: what Slurm told last; None if nothing, or that it knows the job no more.
        outcome: how it ended; None until it has.
    """

    def __init__(self, name: str, folder: Path, requeue: bool) -> None:
        self.name = name
        self.attempt = attempt_folder(folder, 0)
        self.info: JobInfo | None = None
        self.outcome: Outcome | None = None
        self._folder = folder
        self._requeue = requeue
        self._controller_node = ""
        self._ended_since: float | None = None

    def has_record_of_end(self, now: float) -> bool:
        """Whether the program of the attempt has said that it ended."""
        record = read_record(self.attempt)
        if record is None or record.exit_code is None:
            self._ended_since = None
        elif self._ended_since is None:
            self._ended_since = now
        return self._ended_since is not None

    def hear(self, info: JobInfo | None) -> Need:
        """Take Slurm's word; None if it knows the job no more."""
        if info is None:
            # What it said last is final only if it said so.
            self.info = self.info if self.info and self.info.state.is_over else None
            return Need.NOTHING
        self.info = info
        attempt = attempt_folder(self._folder, info.restarts)
        if attempt != self.attempt:
            self.attempt = attempt
            self._controller_node = ""
        ending = info.state is JobState.COMPLETING and self._requeue
        if info.state.is_waiting or ending:
            self._ended_since = None  # the record is an earlier attempt's, or will be
        if never_starts(info):
            return Need.CANCEL
        return Need.FREE if self._lost_controller(info) else Need.NOTHING

    def conclude(self, now: float, answered: bool) -> None:
        """Set ``outcome`` if the job has ended. ``answered``: Slurm was heard just now."""
        is_final = answered and (self.info is None or self.info.state.is_over)
        waited = self._ended_since is not None and now > self._ended_since + CONFIRM_FOR_S
        if is_final or waited:
            # The record may have come since it was looked for.
            self.outcome = judge(self.name, self.info, read_record(self.attempt))

    def was_freed(self) -> None:
        """It was cancelled, because the node of its controller is gone."""
        assert self.info is not None
        lost = replace(self.info, state=JobState.NODE_FAIL)
        self.outcome = judge(self.name, lost, read_record(self.attempt))

    def was_refused(self) -> None:
        """It was cancelled, because it could never start."""
        assert self.info is not None
        why = explain_waiting(self.info)
        self.outcome = Outcome(EXIT_SUBMIT_FAILED, f"job {self.name} can never start: {why}")

    def _lost_controller(self, info: JobInfo) -> bool:
        """Whether Slurm has dropped the controller's node from a job that it lets run on."""
        if left_controller(info):
            # Only a node that was seen there before can have been dropped.
            return info.batch_host == self._controller_node
        if info.state is JobState.RUNNING:
            self._controller_node = info.batch_host
        return False

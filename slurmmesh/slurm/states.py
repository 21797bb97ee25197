"""The states of a Slurm job, as all its versions and tools write them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum


class JobState(str, Enum):
    """What Slurm says about a job. A word that is not known is UNKNOWN, never success."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    STOPPED = "STOPPED"
    SIGNALING = "SIGNALING"
    RESIZING = "RESIZING"
    STAGE_OUT = "STAGE_OUT"
    COMPLETING = "COMPLETING"
    REQUEUED = "REQUEUED"
    REQUEUE_FED = "REQUEUE_FED"
    REQUEUE_HOLD = "REQUEUE_HOLD"
    RESV_DEL_HOLD = "RESV_DEL_HOLD"
    SPECIAL_EXIT = "SPECIAL_EXIT"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    OUT_OF_MEMORY = "OUT_OF_MEMORY"
    BOOT_FAIL = "BOOT_FAIL"
    LAUNCH_FAILED = "LAUNCH_FAILED"
    DEADLINE = "DEADLINE"
    PREEMPTED = "PREEMPTED"
    REVOKED = "REVOKED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_waiting(self) -> bool:
        """The job has not started (or waits to start again)."""
        return self in _WAITING

    @property
    def is_over(self) -> bool:
        """The job will do nothing more."""
        return self in _OVER

    @property
    def is_success(self) -> bool:
        """The job ended, and well."""
        return self is JobState.COMPLETED


_WAITING = frozenset(
    {
        JobState.PENDING,
        JobState.CONFIGURING,
        JobState.REQUEUED,
        JobState.REQUEUE_FED,
        JobState.REQUEUE_HOLD,
        JobState.RESV_DEL_HOLD,
        JobState.SPECIAL_EXIT,
    }
)
_OVER = frozenset(
    {
        JobState.COMPLETED,
        JobState.FAILED,
        JobState.CANCELLED,
        JobState.TIMEOUT,
        JobState.NODE_FAIL,
        JobState.OUT_OF_MEMORY,
        JobState.BOOT_FAIL,
        JobState.LAUNCH_FAILED,
        JobState.DEADLINE,
        JobState.PREEMPTED,
        JobState.REVOKED,
    }
)
# Newer Slurm gives a base state with flags beside it: while one of these stands, the job is not
# where its base state says.
_FLAGS_THAT_RULE = (
    JobState.COMPLETING,
    JobState.REQUEUED,
    JobState.REQUEUE_FED,
    JobState.REQUEUE_HOLD,
    JobState.RESV_DEL_HOLD,
    JobState.SPECIAL_EXIT,
    JobState.STAGE_OUT,
    JobState.CONFIGURING,
)


def parse_state(words: str | Sequence[str]) -> JobState:
    """The state behind a word (``CANCELLED by 54321``, ``CANCELLED+``) or a list of words.

    Of a list (``["RUNNING", "COMPLETING"]``, newer JSON) the flag that rules is taken, else the
    first word that is known. Nothing known gives UNKNOWN.
    """
    if isinstance(words, str):
        words = [words]
    states = [state for word in words if (state := _parse_word(word)) is not JobState.UNKNOWN]
    for flag in _FLAGS_THAT_RULE:
        if flag in states:
            return flag
    return states[0] if states else JobState.UNKNOWN


def _parse_word(word: str) -> JobState:
    first = word.strip().upper().split(" ", 1)[0].rstrip("+")
    try:
        return JobState(first)
    except ValueError:
        return JobState.UNKNOWN

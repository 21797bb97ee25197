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
    POWER_UP_NODE = "POWER_UP_NODE"
    RECONFIG_FAIL = "RECONFIG_FAIL"
    EXPEDITING = "EXPEDITING"
    UNKNOWN = "UNKNOWN"

    def __str__(self) -> str:
        return self.value

    @property
    def is_waiting(self) -> bool:
        """The job has not started (or waits to start again)."""
        return self in _WAITING

    @property
    def is_over(self) -> bool:
        """The job will do nothing more. (One that is REVOKED goes on in another cluster.)"""
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
        JobState.POWER_UP_NODE,
        JobState.EXPEDITING,
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
    }
)
# Newer Slurm gives a base state with flags beside it: while one of these stands, the job is not
# where its base state says. The first of them rules.
_FLAGS_THAT_RULE = (
    JobState.COMPLETING,
    JobState.REQUEUED,
    JobState.REQUEUE_FED,
    JobState.REQUEUE_HOLD,
    JobState.RESV_DEL_HOLD,
    JobState.SPECIAL_EXIT,
    JobState.EXPEDITING,
    JobState.REVOKED,
    JobState.STAGE_OUT,
    JobState.CONFIGURING,
    JobState.POWER_UP_NODE,
)
# Those that only say more about a base state beside them, which is what counts.
_FLAGS_THAT_ADD = (
    JobState.STOPPED,
    JobState.SIGNALING,
    JobState.RESIZING,
    JobState.RECONFIG_FAIL,
    JobState.LAUNCH_FAILED,
)
_SHORT = {
    "PD": JobState.PENDING,
    "CF": JobState.CONFIGURING,
    "R": JobState.RUNNING,
    "S": JobState.SUSPENDED,
    "ST": JobState.STOPPED,
    "SI": JobState.SIGNALING,
    "RS": JobState.RESIZING,
    "SO": JobState.STAGE_OUT,
    "CG": JobState.COMPLETING,
    "RQ": JobState.REQUEUED,
    "RF": JobState.REQUEUE_FED,
    "RH": JobState.REQUEUE_HOLD,
    "RD": JobState.RESV_DEL_HOLD,
    "SE": JobState.SPECIAL_EXIT,
    "CD": JobState.COMPLETED,
    "F": JobState.FAILED,
    "CA": JobState.CANCELLED,
    "TO": JobState.TIMEOUT,
    "NF": JobState.NODE_FAIL,
    "OOM": JobState.OUT_OF_MEMORY,
    "BF": JobState.BOOT_FAIL,
    "DL": JobState.DEADLINE,
    "PR": JobState.PREEMPTED,
    "RV": JobState.REVOKED,
}


def parse_state(words: str | Sequence[str]) -> JobState:
    """The state behind a word (``CANCELLED by 54321``, ``CANCELLED+``, ``CG``) or a list of words.

    Of a list (``["RUNNING", "COMPLETING"]``, newer JSON) the flag that rules is taken, else the
    first base state that is known. Nothing known gives UNKNOWN, and so does a success beside a
    word that is not known.
    """
    if isinstance(words, str):
        words = [words]
    states = [_parse_word(word) for word in words]
    for flag in _FLAGS_THAT_RULE:
        if flag in states:
            return flag
    known = [state for state in states if state is not JobState.UNKNOWN]
    known.sort(key=lambda state: state in _FLAGS_THAT_ADD)
    if not known or (known[0].is_success and JobState.UNKNOWN in states):
        return JobState.UNKNOWN
    return known[0]


def _parse_word(word: str) -> JobState:
    if not word.isascii():
        return JobState.UNKNOWN
    first = word.strip().upper().split(" ", 1)[0].rstrip("+")
    if short := _SHORT.get(first):
        return short
    try:
        return JobState(first)
    except ValueError:
        return JobState.UNKNOWN

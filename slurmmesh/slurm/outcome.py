"""How a job ended, told from two witnesses: the record in its folder, and Slurm."""

from __future__ import annotations

from dataclasses import dataclass

from slurmmesh.errors import EXIT_JOB_FAILED, EXIT_OK, EXIT_PREEMPTED, HostListError
from slurmmesh.record import JobRecord
from slurmmesh.slurm import reasons
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.states import JobState


@dataclass(frozen=True)
class Outcome:
    """The end of a job: the code that ``submit --wait`` exits with, and why in words."""

    exit_code: int
    message: str


_ENDS = {
    JobState.CANCELLED: "was cancelled",
    JobState.TIMEOUT: "reached its time limit; ask for more with --time",
    JobState.NODE_FAIL: "lost the node that its controller ran on",
    JobState.OUT_OF_MEMORY: "ran out of memory; ask for more with --mem SIZE",
    JobState.BOOT_FAIL: "did not start: a node failed to boot",
    JobState.LAUNCH_FAILED: "did not start: its script could not be launched",
    JobState.DEADLINE: "was ended at its deadline",
    JobState.PREEMPTED: "was preempted by a job of higher priority; --requeue lets Slurm start it "
    "again",
}
# Of a job that is REVOKED here, while the cluster that runs it is not heard.
RUNS_ELSEWHERE = "runs on another cluster of the federation; this one does not say how it is"


def explain_waiting(info: JobInfo) -> str:
    """Why a job is not running, in words."""
    words = reasons.explain(info.reason)
    if info.reason in ("", "None"):
        return words or "Slurm gives no reason"
    return f"{words} ({info.reason})" if words else info.reason


def never_starts(info: JobInfo) -> bool:
    """Whether a waiting job waits for something that time alone will not bring."""
    return info.state.is_waiting and reasons.is_for_ever(info.reason)


def left_controller(info: JobInfo) -> bool:
    """Whether Slurm lets a job run on without the node of its controller."""
    if info.state is not JobState.RUNNING or not info.batch_host or not info.nodes:
        return False
    try:
        return info.batch_host not in expand(info.nodes)
    except HostListError:
        return False


def judge(job: str, info: JobInfo | None, record: JobRecord | None) -> Outcome:
    """How job ``job`` ended. Call it when Slurm's word is final, or Slurm knows it no more.

    The program's own exit code counts if it ended by itself. A job that Slurm ended has failed,
    whatever its program still managed to write. Where the witnesses differ, both are told. What
    nobody vouches for is no success.
    """
    code = record.exit_code if record else None
    state = info.state if info else JobState.UNKNOWN
    if info and state in _ENDS:
        ending = EXIT_PREEMPTED if state is JobState.PREEMPTED else EXIT_JOB_FAILED
        return Outcome(ending, f"job {job} {_how_slurm_ended_it(info, code)}")
    if code is None:
        return _without_record(job, info)
    told_by_slurm = _slurm_code(info) if info and state.is_over else code
    if told_by_slurm == code:
        return Outcome(code, f"job {job} {_ended(code)}")
    return Outcome(
        code or told_by_slurm,
        f"job {job}: its record says that the program {_ended(code)}, but Slurm says "
        f"{state.value} with exit code {told_by_slurm}",
    )


def _how_slurm_ended_it(info: JobInfo, code: int | None) -> str:
    if info.state is JobState.CANCELLED and not info.nodes:
        return "was cancelled while it was waiting to start"
    how = _ENDS[info.state]
    return f"{how} (its record says that the program {_ended(0)} before)" if code == 0 else how


def _without_record(job: str, info: JobInfo | None) -> Outcome:
    if info is None or info.state is JobState.UNKNOWN:
        return Outcome(
            EXIT_JOB_FAILED,
            f"job {job} is gone: Slurm does not know it any more, and its folder has no record of "
            "its end",
        )
    if info.state.is_success:
        return Outcome(
            EXIT_OK, f"job {job} ended well by Slurm's word, but its folder has no record of that"
        )
    code = _slurm_code(info)
    return Outcome(
        code,
        f"job {job} ended without a record in its folder; Slurm says {info.state.value} with exit "
        f"code {code}",
    )


def _ended(code: int) -> str:
    return "ended well" if code == EXIT_OK else f"failed with exit code {code}"


def _slurm_code(info: JobInfo) -> int:
    """As a shell would tell it. A failure without a code or signal still is one."""
    code = 128 + info.signal if info.signal else info.exit_code
    return code or (EXIT_OK if info.state.is_success else EXIT_JOB_FAILED)

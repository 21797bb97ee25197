"""How a step and its tasks ended, read from what srun said and what Slurm wrote to their stderr.

srun's exit code alone is no witness: it is 0 for a step that was lost with its node.
"""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass

from submitit.core.utils import UncompletedJobError

from slurmmesh.errors import SlurmmeshError

_TASKS = re.compile(r"srun: error: (\S+): tasks? (\d+(?:[-,]\d+)*): (.+)", re.ASCII)
_EXITED = re.compile(r"Exited with exit code (\d+)", re.ASCII)
_SIGNALS = {signal.strsignal(number): int(number) for number in signal.Signals}
# What srun says to --cpu-bind=none where there is nothing to bind with anyway.
_NO_BINDING = "srun: cluster configuration lacks support for cpu binding"
# The first that is found counts. Slurm writes "STEP 1.2 ON n1 CANCELLED AT ... DUE TO TIME LIMIT".
_CAUSES = (
    ("TIMEOUT", re.compile(r"CANCELLED AT .* DUE TO TIME LIMIT")),
    ("NODE_FAIL", re.compile(r"Node failure on|DUE TO NODE FAILURE")),
    ("OUT_OF_MEMORY", re.compile(r"Out Of Memory|oom[-_]kill", re.IGNORECASE)),
    (
        "CANCELLED",
        re.compile(r"\*\*\* (?:STEP|JOB) .* CANCELLED AT|Timed out waiting for job step"),
    ),
)


class StepDied(UncompletedJobError, SlurmmeshError):
    """A task of a step ended without a result: killed, crashed, or never begun.

    Attributes:
        task: its rank.
        state: of its step, in Slurm's words.
        code, signal: that the task ended with, where srun told.
        stderr_tail: the last lines it wrote.
    """

    def __init__(
        self,
        message: str,
        *,
        task: int = 0,
        state: str = "UNKNOWN",
        code: int | None = None,
        signal: int | None = None,
        stderr_tail: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.task = task
        self.state = state
        self.code = code
        self.signal = signal
        self.stderr_tail = stderr_tail


@dataclass(frozen=True)
class TaskEnd:
    """What srun said of the end of a task that failed."""

    node: str
    words: str

    @property
    def exit_code(self) -> int | None:
        """Of one that exited."""
        match = _EXITED.match(self.words)
        return int(match[1]) if match else None

    @property
    def signal(self) -> int | None:
        """Of one that was killed."""
        return _SIGNALS.get(self.words.removesuffix(" (core dumped)"))

    def describe(self) -> str:
        """``killed by SIGSEGV on node3`` and the like."""
        if self.exit_code is not None:
            how = f"exited with code {self.exit_code}"
        elif self.signal is not None:
            how = f"killed by {signal.Signals(self.signal).name}"
        else:
            how = self.words
        return f"{how} on {self.node}"


def task_ends(said: str) -> dict[int, TaskEnd]:
    """The tasks of which srun said that they failed, by their ranks."""
    found: dict[int, TaskEnd] = {}
    for line in said.splitlines():
        if match := _TASKS.fullmatch(line.strip()):
            end = TaskEnd(match[1], match[3])
            for part in match[2].split(","):
                first, _, last = part.partition("-")
                found.update(dict.fromkeys(range(int(first), int(last or first) + 1), end))
    return found


def final_state(code: int, cancelled: bool, said: str, stderr: str) -> str:
    """How a step ended, as Slurm names it.

    Args:
        code: srun's exit code.
        cancelled: somebody here wanted its end.
        said: by srun.
        stderr: of its tasks, with what Slurm wrote there.
    """
    if cancelled and code != 0:
        return "CANCELLED"
    by_slurm = [line for line in stderr.splitlines() if line.startswith("slurmstepd")]
    words = "\n".join([said, *by_slurm])
    for state, pattern in _CAUSES:
        if pattern.search(words):
            return state
    return "COMPLETED" if code == 0 else "FAILED"


def srun_words(log: str) -> str:
    """What srun said, without what it says to everybody."""
    return "\n".join(line for line in log.splitlines() if line != _NO_BINDING).strip()

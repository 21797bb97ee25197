"""Watching a job, or all tasks of an array, until it is over, with few questions to Slurm."""

from __future__ import annotations

import math
import os
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from slurmmesh.errors import EXIT_OK, SubmitError
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.life import Life, Need
from slurmmesh.slurm.options import array_tasks
from slurmmesh.slurm.outcome import RUNS_ELSEWHERE, Outcome, explain_waiting
from slurmmesh.slurm.states import JobState

_LOOK_EVERY_S = 0.1
_FIRST_INTERVAL_S = 0.5
_LONGEST_INTERVAL_S = 5.0
# When a program has said that it ended, Slurm is asked this often to confirm it.
_CONFIRM_INTERVAL_S = 0.2


class JobWatch:
    """One job, from what its folder and Slurm tell; of an array, all of its tasks.

    Slurm's silence ends nothing: the job goes on without slurmctld, so the watch does too. What
    can never start is cancelled, and so is what holds nodes without a controller (or it is
    requeued, if the job allows that).

    Args:
        tell: gets a line for each change.

    Attributes:
        outcome: how the job ended; of an array as the first of its tasks that failed, if one
            did. None until it has.
    """

    def __init__(self, client: SlurmClient, job: SlurmJob, tell: Callable[[str], None]) -> None:
        self.outcome: Outcome | None = None
        self._client = client
        self._ref = JobRef(job.id, job.cluster)
        self._requeue = job.requeue
        self._is_array = job.array is not None
        names = [job.id]
        if self._is_array:
            names = [f"{job.id}_{task}" for task in array_tasks(str(job.array))]
        self._lives = {name: Life(name, job.folder.with_name(name), job.requeue) for name in names}
        # The job itself; of an array the first task, and in the end the first that failed.
        self._first = self._lives[names[0]]
        self._tell = tell
        self._told = ""
        self._interval_s = _FIRST_INTERVAL_S
        self._next_question = time.monotonic()
        self._ending = False

    @property
    def attempt(self) -> Path:
        """The folder of the job's attempt that runs, or ran last."""
        return self._first.attempt

    @property
    def log(self) -> Path:
        """Where to read how it went; of an array once it is over."""
        return self.attempt / "controller.log"

    def has_started(self) -> bool:
        """Whether the attempt's folder is there; its logs can be followed from then on."""
        return os.path.isdir(self.attempt)

    def is_over(self) -> bool:
        """Whether all has ended; then ``outcome`` is set. Cheap: call it often.

        Raises:
            SubmitError: the job can never start; it has been cancelled.
        """
        if self.outcome is not None:
            return True
        now = time.monotonic()
        if not self._is_array and not self._ending and self._first.has_record_of_end(now):
            self._ending = True
            self._next_question = now
        if now < self._next_question:
            return False
        answered = self.look()
        ending = [life.has_record_of_end(now) for life in self._open]
        self._ending = any(ending)
        for life in self._open:
            life.conclude(time.monotonic(), answered)
        if not self._open:
            self._conclude()
            return True
        self._plan_next_question()
        return False

    def look(self) -> bool:
        """Ask Slurm once, out of turn; returns whether it answered.

        Raises:
            SubmitError: the job waits for what will not come; it has been cancelled.
        """
        try:
            found = self._ask()
        except SubmitError as error:
            self._say(f"{error.message}; the job does not need it, so the watch goes on")
            return False
        lives = self._open
        attempts = {life.name: life.attempt for life in lives}
        needs = {life.name: life.hear(found.get(life.name)) for life in lives}
        for life in lives:
            if life.attempt != attempts[life.name]:
                number = life.attempt.name.rpartition("-")[2]
                self._say(f"job {life.name} was requeued: attempt {number}")
        self._say_states(lives)
        self._refuse([life for life in lives if needs[life.name] is Need.CANCEL])
        for life in lives:
            if needs[life.name] is Need.FREE:
                self._free(life)
        return True

    @property
    def _open(self) -> list[Life]:
        return [life for life in self._lives.values() if life.outcome is None]

    def _ask(self) -> Mapping[str, JobInfo]:
        if self._is_array:
            return {ref.id: info for ref, info in self._client.jobs([self._ref]).items()}
        info = self._client.job(self._ref)
        return {self._ref.id: info} if info else {}

    def _refuse(self, lives: Sequence[Life]) -> None:
        """Cancel what can never start: the job, or some tasks of an array."""
        if not lives:
            return
        if len(lives) == len(self._lives):
            self._client.cancel(self._ref)
            info = lives[0].info
            assert info is not None
            raise SubmitError(
                f"job {self._ref} can never start, so it was cancelled",
                slurm_message=info.reason,
                advice=explain_waiting(info),
            )
        tasks = ",".join(life.name.rpartition("_")[2] for life in lives)
        self._client.cancel(JobRef(f"{self._ref.id}_[{tasks}]", self._ref.cluster))
        for life in lives:
            life.was_refused()
            assert life.outcome is not None
            self._say(f"{life.outcome.message}; it was cancelled")

    def _free(self, life: Life) -> None:
        """End a job without its controller, which still holds nodes."""
        assert life.info is not None
        ref = JobRef(life.name, self._ref.cluster)
        end = self._client.requeue if self._requeue else self._client.cancel
        try:
            end(ref)
        except SubmitError as error:
            self._say(f"job {ref} has lost its controller, but still runs: {error.message}")
            return
        what = "requeued" if self._requeue else "cancelled"
        self._say(
            f"{life.info.batch_host}, on which its controller ran, is down: job {ref} was {what}"
        )
        if not self._requeue:
            life.was_freed()

    def _conclude(self) -> None:
        if not self._is_array:
            self.outcome = self._first.outcome
            return
        outcomes = {life: life.outcome for life in self._lives.values() if life.outcome}
        failed = [life for life, outcome in outcomes.items() if outcome.exit_code != EXIT_OK]
        if not failed:
            said = f"job {self._ref}: all {len(outcomes)} tasks ended well"
            self.outcome = Outcome(EXIT_OK, said)
            return
        self._first = failed[0]
        first = outcomes[self._first]
        codes = Counter(outcomes[life].exit_code for life in failed)
        told = ", ".join(f"{count} with code {code}" for code, count in sorted(codes.items()))
        self.outcome = Outcome(
            first.exit_code,
            f"job {self._ref}: {len(failed)} of {len(outcomes)} tasks failed ({told}); the first: "
            f"{first.message}",
        )

    def _say_states(self, lives: Sequence[Life]) -> None:
        if self._is_array:
            self._say_numbers(lives)
            return
        info = self._first.info
        if info is None or (info.state.is_waiting and info.reason in ("", "None")):
            return  # Slurm has not looked at it yet
        if info.state.is_waiting:
            self._say(f"job {self._ref} is waiting: {explain_waiting(info)}")
        elif info.state is JobState.REVOKED:
            self._say(f"job {self._ref} {RUNS_ELSEWHERE}")
        elif not info.state.is_over and info.nodes:
            self._say(f"job {self._ref} is running on {info.nodes}")

    def _say_numbers(self, lives: Sequence[Life]) -> None:
        infos = [life.info for life in lives if life.info and not life.info.state.is_over]
        waiting = sum(info.state.is_waiting for info in infos)
        running = len(infos) - waiting
        ended = len(self._lives) - len(infos)
        self._say(f"job {self._ref}: {waiting} waiting, {running} running, {ended} ended")

    def _say(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._tell(line)

    def _plan_next_question(self) -> None:
        if self._ending and not self._is_array:
            self._interval_s = _CONFIRM_INTERVAL_S
        else:
            self._interval_s = min(self._interval_s * 1.5, _LONGEST_INTERVAL_S)
        self._next_question = time.monotonic() + self._interval_s


def wait(watch: JobWatch, timeout_s: float | None = None) -> Outcome | None:
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

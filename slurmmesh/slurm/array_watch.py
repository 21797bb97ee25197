"""Watching all tasks of an array until the last is over."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from slurmmesh.errors import EXIT_OK, SubmitError
from slurmmesh.folders import latest_attempt
from slurmmesh.slurm.client import JobInfo, JobRef, SlurmClient
from slurmmesh.slurm.outcome import Outcome, explain_waiting, judge, never_starts, read_record

_FIRST_INTERVAL_S = 0.5
_LONGEST_INTERVAL_S = 5.0


class ArrayWatch:
    """The life of an array. Its outcome is that of the first task that failed, if one did.

    Args:
        folder: the array's; its tasks' folders lie beside it.
        tasks: the indexes.
        tell: gets a line for each change.

    Attributes:
        outcome: how it ended; None until it has.
    """

    def __init__(
        self,
        client: SlurmClient,
        ref: JobRef,
        folder: Path,
        tasks: Sequence[int],
        tell: Callable[[str], None],
    ) -> None:
        self.outcome: Outcome | None = None
        self.log = folder.with_name(f"{folder.name}_*") / "attempt-*" / "controller.log"
        self._client = client
        self._ref = ref
        self._folder = folder
        self._tasks = tasks
        self._tell = tell
        self._told = ""
        self._infos: dict[str, JobInfo] = {}
        self._interval_s = _FIRST_INTERVAL_S
        self._next_question = time.monotonic()

    def is_over(self) -> bool:
        """Whether all tasks have ended; then ``outcome`` is set. Cheap: call it often.

        Raises:
            SubmitError: they can never start; the array has been cancelled.
        """
        if self.outcome is not None:
            return True
        if time.monotonic() < self._next_question:
            return False
        if self.look():
            self.outcome = self._judge()
            return True
        self._interval_s = min(self._interval_s * 1.5, _LONGEST_INTERVAL_S)
        self._next_question = time.monotonic() + self._interval_s
        return False

    def look(self) -> bool:
        """Ask Slurm once, out of turn; returns whether all is over.

        Raises:
            SubmitError: the tasks wait for what will not come; the array has been cancelled.
        """
        try:
            found = self._client.jobs([self._ref])
        except SubmitError as error:
            self._say(f"{error.message}; the job does not need it, so the watch goes on")
            return False
        for ref, info in found.items():
            if never_starts(info):
                self._client.cancel(self._ref)
                raise SubmitError(
                    f"job {ref} can never start, so it was cancelled",
                    slurm_message=info.reason,
                    advice=explain_waiting(info),
                )
            self._infos[ref.id] = info
        self._say_states(list(found.values()))
        return all(info.state.is_over for info in found.values())

    def _say_states(self, infos: Sequence[JobInfo]) -> None:
        running = sum(not info.state.is_over and not info.state.is_waiting for info in infos)
        ended = sum(
            info.state.is_over
            for name, info in self._infos.items()
            if name.rpartition("_")[2].isdecimal()
        )
        self._say(f"job {self._ref}: {running} of {len(self._tasks)} running, {ended} ended")

    def _say(self, line: str) -> None:
        if line != self._told:
            self._told = line
            self._tell(line)

    def _judge(self) -> Outcome:
        outcomes = []
        for task in self._tasks:
            name = f"{self._ref.id}_{task}"
            folder = latest_attempt(self._folder.with_name(name))
            outcome = judge(name, self._infos.get(name), read_record(folder))
            outcomes.append((outcome, folder))
        failed = [(outcome, folder) for outcome, folder in outcomes if outcome.exit_code != EXIT_OK]
        if not failed:
            return Outcome(EXIT_OK, f"job {self._ref}: all {len(self._tasks)} tasks ended well")
        first, folder = failed[0]
        self.log = folder / "controller.log"
        count = Counter(outcome.exit_code for outcome, _ in failed)
        codes = ", ".join(f"{number} with code {code}" for code, number in sorted(count.items()))
        return Outcome(
            first.exit_code,
            f"job {self._ref}: {len(failed)} of {len(self._tasks)} tasks failed ({codes}); the "
            f"first: {first.message}",
        )

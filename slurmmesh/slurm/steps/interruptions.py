"""What a step does with signals: it saves its state, and asks to be started again.

SIGUSR2 means that it is to make room (a preemption, or its time is nearly up) and goes on later;
SIGTERM, that Slurm ends it: it saves its state and does not come back. Slurm sends no SIGTERM to
a step that is cancelled, only to those of a job that ends.
"""

from __future__ import annotations

import signal
import sys
import traceback
from types import FrameType

from submitit.core import logger, utils
from submitit.core.job_environment import JobEnvironment

from slurmmesh.slurm.steps.paths import StepPaths, draft_of, take, write_json

# Of a step that asks to be started again.
REQUEUE_CODE = 99


class Interruptions:
    """The signal handlers of a task. Only the first task of a step acts.

    As with submitit on Slurm, ``checkpoint`` of the submitted callable is called in the middle of
    what it is doing, with its arguments. A callable without one starts from its beginning after a
    preemption, and fails when its time is up.
    """

    def __init__(
        self, env: JobEnvironment, paths: StepPaths, submission: utils.DelayedSubmission
    ) -> None:
        self._env = env
        self._paths = paths
        self._submission = submission
        self._saving = False
        self._terminated = False

    def make_room(self, signum: int, frame: FrameType | None) -> None:
        """For SIGUSR2: save, ask to be started again, exit."""
        if self._is_mine(signum):
            self._paths.refresh()
            timed_out = take(self._paths.timeout)
            self._leave(frame, timed_out, "timed-out" if timed_out else "preempted")

    def terminate(self, signum: int, frame: FrameType | None) -> None:
        """For SIGTERM: save and exit."""
        self._terminated = True
        if self._is_mine(signum):
            self._leave(frame, False, "ended by Slurm")

    def ignore(self, signum: int, frame: FrameType | None) -> None:
        """Only tell of it."""
        logger.get_logger().warning(f"Bypassing signal {signal.Signals(signum).name}")

    def _is_mine(self, signum: int) -> bool:
        name = signal.Signals(signum).name
        if self._saving:
            logger.get_logger().warning(f"Caught {name}: already saving")
        elif self._env.global_rank != 0:
            logger.get_logger().info(f"Caught {name}: left to the first task")
        elif self._paths.result_pickle.exists():
            logger.get_logger().info(f"Caught {name}: done already")
        else:
            return True
        return False

    def _leave(self, frame: FrameType | None, timed_out: bool, case: str) -> None:
        logger.get_logger().warning(f"This step is {case}.")
        self._saving = True
        countdown = self._submission._timeout_countdown - timed_out
        try:
            refusal = self._save(countdown, timed_out)
        except Exception:
            self._fail(f"Its checkpoint failed.\n{traceback.format_exc()}")
        if self._terminated:
            refusal = "Slurm ends it (SIGTERM)"
        elif countdown < 0:
            refusal = "timed-out too many times"
        if refusal:
            where = "".join(traceback.format_stack(frame)) if frame else ""
            self._fail(f"{where}Job not requeued because: {refusal}.")
        logger.get_logger().info(f"Asking to be started again ({countdown} timeouts left)")
        note = {"countdown": countdown, "warn_after_s": warning_of(self._submission)}
        write_json(self._paths.requeue, note)
        sys.exit(REQUEUE_CODE)

    def _save(self, countdown: int, timed_out: bool) -> str:
        """Put in place what the next attempt is to run; returns why there can be none."""
        function = self._submission.function
        if not any(hasattr(function, name) for name in ("__submitit_checkpoint__", "checkpoint")):
            return "timed-out and not checkpointable" if timed_out else ""
        logger.get_logger().info("Calling checkpoint method.")
        following = self._submission._checkpoint_function()
        if following is None:
            return "checkpoint function returned None"
        following.set_timeout(self._submission._timeout_min, countdown)
        set_warning(following, warning_of(self._submission))
        draft_of(self._paths.submitted_pickle).unlink(missing_ok=True)
        with utils.temporary_save_path(self._paths.submitted_pickle) as draft:
            following.dump(draft)
        return ""

    def _fail(self, trace: str) -> None:
        """End with an error for a result. It is no exception, which a user's code might catch."""
        print(trace, file=sys.stderr, flush=True)
        draft_of(self._paths.result_pickle).unlink(missing_ok=True)
        with utils.temporary_save_path(self._paths.result_pickle) as draft:
            utils.cloudpickle_dump(("error", trace), draft)
        sys.exit(1)


def set_warning(submission: utils.DelayedSubmission, after_s: float | None) -> None:
    """Keep with a submission when, after its start, a step is told that its time is nearly up."""
    submission.slurmmesh_warn_after_s = after_s  # type: ignore[attr-defined]


def warning_of(submission: utils.DelayedSubmission) -> float | None:
    """What ``set_warning`` kept."""
    return getattr(submission, "slurmmesh_warn_after_s", None)

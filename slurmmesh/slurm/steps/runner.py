"""Starts steps, so many at once, watches their sruns, and starts again those that ask for it.

All of it happens in the process that submits, in one thread that is there while there are steps.
Each step has its own file that starts it, so that another process can take over from a dead one
(``elsewhere.py``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from slurmmesh.errors import SetupError, UsageError
from slurmmesh.slurm.steps import endings
from slurmmesh.slurm.steps.inside import StepJobEnvironment
from slurmmesh.slurm.steps.paths import StepPaths, is_there, take, write_json

# How often a step's files are looked at for its wish to be started again, or not at all.
_LOOK_EVERY_S = 1.0
# From that wish, or from SIGTERM to a cancelled step's srun, until it is ended by force.
GRACE_S = 10.0
_READY_WITHIN_S = 60.0
# A program that ends waits so long for its steps without saying so: their sruns are just ending.
_QUIETLY_S = 2.0
_WORDS = 4000


@dataclass
class Slots:
    """So many steps may run at once."""

    limit: int
    taken: int = 0


@dataclass(eq=False)
class Step:
    """A step, through all its attempts. Only the runner changes it.

    Attributes:
        paths: of its first task.
        tasks: how many it has.
        environ: for its script.
        slots: it takes one of each while it runs.
        supervised: it may wait for a slot, and be started again.
        warn_after_s: when, after its start, it is told that its time is nearly up.
        awaited: the program does not end before it.
        state: in Slurm's words.
        code: of its last srun, once it is over.
    """

    paths: StepPaths
    tasks: int
    environ: Mapping[str, str]
    slots: tuple[Slots, ...] = ()
    supervised: bool = True
    warn_after_s: float | None = None
    awaited: bool = True
    state: str = "PENDING"
    code: int | None = None
    process: subprocess.Popen[bytes] | None = None
    pidfd: int = -1
    cancelled: bool = False
    warn_at: float | None = None
    force_at: float | None = None
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def tag(self) -> str:
        """Its id."""
        assert self.paths.job_id is not None
        return self.paths.job_id

    @property
    def has_room(self) -> bool:
        """Whether it may run now."""
        return all(slot.taken < slot.limit for slot in self.slots)

    def said(self) -> str:
        """What its srun said."""
        return endings.srun_words(tail(self.paths.srun_log))


class Runner:
    """All steps that this process started."""

    def __init__(self) -> None:
        self._forget()

    def _forget(self) -> None:
        """Begin anew; also what a forked child does, whose steps they are not."""
        self._lock = threading.RLock()
        # A step that is over stays as long as somebody has its job in hand.
        self._steps: WeakValueDictionary[str, Step] = WeakValueDictionary()
        self._waiting: deque[Step] = deque()
        self._running: list[Step] = []
        self._thread: threading.Thread | None = None
        self._wake = -1

    def find(self, tag: str) -> Step | None:
        """A step of this process by its id, in its present state."""
        step = self._steps.get(tag)
        if step is not None and not step.over.is_set():
            with self._lock:
                self._settle(step)
        return step

    def submit(self, step: Step) -> None:
        """Start a step, at once or when there is room.

        Raises:
            SetupError: it cannot be started here.
        """
        with self._lock:
            if step.has_room:
                try:
                    self._start(step)
                except OSError as error:
                    raise SetupError(f"a step cannot be started: {error}") from error
                self._watch()
            else:
                self._waiting.append(step)
            self._steps[step.tag] = step

    def cancel(self, step: Step) -> None:
        """End a step, or do not start it; returns at once."""
        with self._lock:
            self._settle(step)
            if step.over.is_set():
                return
            step.cancelled = True
            if step.process is None:
                self._waiting.remove(step)
                self._end(step, -signal.SIGTERM, "CANCELLED")
            else:
                step.process.terminate()
                step.force_at = time.monotonic() + GRACE_S
                self._watch()

    def kill(self, step: Step) -> None:
        """End its srun, without asking Slurm: for a step whose node does not answer."""
        with self._lock:
            process = step.process
            if process is None:
                return
            step.cancelled = True
            process.kill()
        # It may take its time, and the others go on meanwhile.
        process.wait()
        self.find(step.tag)

    def interrupt(self, step: Step, timeout: bool) -> None:
        """Tell a step to save its state and make room.

        Raises:
            UsageError: it has not started yet, or is over.
        """
        deadline = time.monotonic() + _READY_WITHIN_S
        # Until its first task heeds the signal, it would kill it. One that is left alone with
        # signals does not say when it does.
        while step.supervised and step.state == "RUNNING" and not is_there(step.paths.started):
            if time.monotonic() > deadline:
                break
            step.over.wait(0.02)
            self.find(step.tag)
        with self._lock:
            if step.process is None:
                raise UsageError(f"step {step.tag} is {step.state}: there is nothing to interrupt")
            self._warn(step, timeout)

    def wait_for_awaited(self) -> None:
        """Return when no step is left that this program has to see to; Ctrl-C ends the waiting."""
        deadline = time.monotonic() + _QUIETLY_S
        with contextlib.suppress(KeyboardInterrupt):
            for step in self._awaited():
                step.over.wait(max(0.0, deadline - time.monotonic()))
            if steps := self._awaited():
                print(
                    f"slurmmesh: {len(steps)} of this program's steps are not over yet; it waits "
                    "for them (Ctrl-C ends that)",
                    file=sys.stderr,
                )
                for step in steps:
                    step.over.wait()

    def _awaited(self) -> list[Step]:
        return [s for s in list(self._steps.values()) if s.awaited and not s.over.is_set()]

    # -- the thread ------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Have the thread look at what is new."""
        if self._thread is None:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread = threading.Thread(target=self._run, name="slurmmesh-steps", daemon=True)
            self._thread.start()
        else:
            os.eventfd_write(self._wake, 1)

    def _run(self) -> None:
        next_look = 0.0
        while True:
            with self._lock:
                for step in list(self._running):
                    self._settle(step)
                if (now := time.monotonic()) >= next_look:
                    next_look = now + _LOOK_EVERY_S
                    for step in self._running:
                        self._see_to(step, now)
                self._fill()
                if not self._running:
                    self._thread = None
                    os.close(self._wake)
                    return
                poller = select.poll()
                poller.register(self._wake, select.POLLIN)
                for step in self._running:
                    poller.register(step.pidfd, select.POLLIN)
                looks = any(step.supervised for step in self._running)
            poller.poll(_LOOK_EVERY_S * 1000 if looks else None)
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._wake)

    def _see_to(self, step: Step, now: float) -> None:
        """What is due for a step that runs."""
        assert step.process is not None
        if not step.supervised:
            return
        if is_there(step.paths.cancel):
            step.cancelled = True
            step.force_at = step.force_at or now
        if step.force_at is None and is_there(step.paths.requeue):
            step.force_at = now + GRACE_S
        if step.force_at is not None and self._is_to_be_forced(step, now):
            step.process.terminate() if now < step.force_at + GRACE_S else step.process.kill()
        if step.warn_at is not None and now >= step.warn_at and is_there(step.paths.started):
            step.warn_at = None
            self._warn(step, timeout=True)

    def _warn(self, step: Step, timeout: bool) -> None:
        assert step.process is not None
        if timeout:
            with contextlib.suppress(OSError):
                step.paths.timeout.touch()
        step.process.send_signal(StepJobEnvironment._usr_sig())

    def _is_to_be_forced(self, step: Step, now: float) -> bool:
        """Whether srun has to be ended: the other tasks do not end because the first has."""
        assert step.force_at is not None
        return now >= step.force_at or (step.tasks > 1 and 0 in endings.task_ends(step.said()))

    # -- with the lock held ----------------------------------------------------------------------

    def _fill(self) -> None:
        """Start what waits, in its order, as far as there is room."""
        for step in list(self._waiting):
            if not step.has_room:
                continue
            self._waiting.remove(step)
            if is_there(step.paths.cancel):
                self._end(step, -signal.SIGTERM, "CANCELLED")
                continue
            try:
                self._start(step)
            except OSError as error:
                with contextlib.suppress(OSError):
                    step.paths.srun_log.write_text(f"it cannot be started: {error}\n")
                self._end(step, 1, "FAILED")

    def _start(self, step: Step) -> None:
        with open(step.paths.srun_log, "wb") as log:
            process = subprocess.Popen(
                ["bash", step.paths.submission_file],
                env=dict(step.environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # A Ctrl-C at the terminal is for the program, which ends its steps in order.
                start_new_session=True,
            )
        try:
            step.pidfd = os.pidfd_open(process.pid)
        except OSError:
            process.kill()
            process.wait()
            raise
        step.process = process
        step.state = "RUNNING"
        step.force_at = None
        if step.warn_after_s is not None:
            step.warn_at = time.monotonic() + step.warn_after_s
        for slot in step.slots:
            slot.taken += 1
        self._running.append(step)

    def _settle(self, step: Step) -> None:
        """See whether its srun has ended, and what comes of that."""
        if step.process is None or (code := step.process.poll()) is None:
            return
        os.close(step.pidfd)
        step.process = None
        self._running.remove(step)
        for slot in step.slots:
            slot.taken -= 1
        if step.supervised and self._is_to_go_on(step):
            step.state = "REQUEUED"
            self._waiting.appendleft(step)
            self._watch()
            return
        cancelled = step.cancelled or is_there(step.paths.cancel)
        stderr = _stderr_of(step) if code else ""
        self._end(step, code, endings.final_state(code, cancelled, step.said(), stderr))
        if self._waiting:
            self._watch()

    def _is_to_go_on(self, step: Step) -> bool:
        """Whether it is to be started again; then nothing of its last attempt is left."""
        paths = step.paths
        paths.refresh()
        if step.cancelled or is_there(paths.cancel) or not is_there(paths.requeue):
            return False
        clear_attempt(paths, step.tasks)
        return take(paths.requeue)

    def _end(self, step: Step, code: int, state: str) -> None:
        step.code = code
        step.state = state
        step.environ = {}
        if step.supervised:
            with contextlib.suppress(OSError):
                write_json(step.paths.ended, {"state": state, "code": code})
        step.over.set()


def clear_attempt(paths: StepPaths, tasks: int) -> None:
    """Remove what belongs to the attempt that is over, srun's words on it first.

    Whoever still sees the wish to be started again does not take those for the step's end.
    """
    with contextlib.suppress(OSError):
        paths.srun_log.write_bytes(b"")
        paths.started.unlink(missing_ok=True)
        paths.timeout.unlink(missing_ok=True)
        paths.forget_results(tasks)


def tail(path: Path) -> str:
    """The last of a text file; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _WORDS))
            return file.read().decode(errors="replace")
    except OSError:
        return ""


def _stderr_of(step: Step) -> str:
    """The last that its tasks wrote to stderr, and Slurm with them."""
    tasks = (step.paths.of_task(task) for task in range(min(step.tasks, 64)))
    return "\n".join(tail(each.stderr) or tail(each.stdout) for each in tasks)


RUNNER = Runner()
os.register_at_fork(after_in_child=RUNNER._forget)
atexit.register(RUNNER.wait_for_awaited)

"""A job on this machine: the controller as our child, followed until it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from slurmmesh.config import Settings
from slurmmesh.errors import SetupError
from slurmmesh.linux import become_subreaper, die_with_parent, kill_group, sweep_children
from slurmmesh.slurm.bootstrap import python_code
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.submit.interrupts import Interrupts
from slurmmesh.submit.stuck import leaves_if_stuck, tell_if_read

# From the SIGTERM that ends a program's patience to SIGKILL.
_LAST_GRACE_S = 5.0


class Foreground:
    """The controller of one local job.

    Ctrl-C and SIGTERM are passed on to it alone: it ends its hosts in order. A second one, or
    ``stop_grace_s`` without an end, makes it harder: SIGTERM, then SIGKILL. If this process is
    killed the controller gets SIGTERM from the kernel.

    Somebody has to look often for this: the main thread with ``is_over``, and another one with
    ``is_over_unheard`` while the main thread may be waiting for a reader of our output.
    """

    def __init__(
        self,
        job: SlurmJob,
        job_id: str,
        folder: Path,
        settings: Settings,
        tell: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._tell = tell
        self._steps: list[int] = []
        self._deadline = 0.0
        self._lock = threading.RLock()  # of both; a handler may come while it is held
        become_subreaper()  # what the controller leaves behind comes to us, to be ended
        parent = os.getpid()
        try:
            with open(folder / "controller.log", "ab") as log:
                self._process = subprocess.Popen(
                    [job.python, "-u", "-c", python_code("slurmmesh.hosts.program"), *job.argv],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=job.chdir,
                    env={
                        **os.environ,
                        **settings.as_environ(),
                        **{name: str(value) for name, value in job.env.items()},
                        **_job_variables(job, job_id, folder),
                    },
                    start_new_session=True,
                    preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
                )
        except OSError as error:
            raise SetupError(f"the controller could not be started: {error}") from error

    def is_over(self) -> bool:
        """Whether the controller has ended; if it is late with that, makes it harder."""
        return self._look(self._tell)

    def is_over_unheard(self) -> bool:
        """As ``is_over``, for a thread that must not wait for a reader of stderr."""
        return self._look(tell_if_read)

    def _look(self, tell: Callable[[str], None]) -> bool:
        if self._process.poll() is not None:
            return True
        with self._lock:
            late = self._steps and time.monotonic() > self._deadline
            done = self._harder() if late else None
        if done:
            tell(done)
        return False

    def stop(self, signum: int) -> None:
        """Ask the controller to end in order; if it was asked before, make it harder.

        For a signal handler: another call may come in at any line.
        """
        with self._lock:
            if self._steps:
                done = self._harder()
            else:
                # The controller has no way to end in order by a SIGHUP.
                self._send(signum if signum == signal.SIGINT else signal.SIGTERM)
                done = "stopping the job; once more to hurry it"
        self._tell(done)

    def finish(self) -> int:
        """End whatever is left; returns the controller's exit code as a shell tells it."""
        kill_group(self._process.pid)
        code = self._process.wait()
        sweep_children()
        return code if code >= 0 else 128 - code

    def _harder(self) -> str:
        """Returns what to tell of it."""
        if signal.SIGTERM not in self._steps:
            self._send(signal.SIGTERM)
            return "the job is not stopping by itself: sending it SIGTERM"
        self._send(signal.SIGKILL)
        return "the job is not stopping by itself: killing it"

    def _send(self, signum: int) -> None:
        grace_s = _LAST_GRACE_S if self._steps else self._settings.stop_grace_s
        self._deadline = time.monotonic() + grace_s
        self._steps.append(signum)
        self._process.send_signal(signum)


def run(
    job: SlurmJob,
    job_id: str,
    folder: Path,
    settings: Settings,
    interrupts: Interrupts,
    follow: Callable[[Path, Callable[[], bool]], None],
    tell: Callable[[str], None],
) -> int:
    """Run a job here to its end; returns the exit code of its program.

    ``follow`` shows the job folder until the function it gets returns true.

    Raises:
        SetupError: the controller could not be started.
    """
    foreground = Foreground(job, job_id, folder, settings, tell)
    interrupts.on_signal = foreground.stop
    for signum in interrupts.received:
        foreground.stop(signum)

    def leave() -> int:
        foreground.finish()
        return interrupts.exit_code

    try:
        with leaves_if_stuck(interrupts, foreground.is_over_unheard, leave):
            follow(folder, foreground.is_over)
            while not foreground.is_over():
                time.sleep(0.05)
    finally:
        interrupts.on_signal = lambda signum: None
        code = foreground.finish()
    return interrupts.exit_code if interrupts else code


def _job_variables(job: SlurmJob, job_id: str, folder: Path) -> dict[str, str]:
    return {
        "SLURMMESH_JOB_FOLDER": str(folder),
        "SLURMMESH_JOB_ID": job_id,
        "SLURMMESH_CLUSTER": "local",
        "SLURMMESH_NODES": str(job.node_range[1] - job.spares),
        "SLURMMESH_SPARES": str(job.spares),
        "SLURMMESH_GPUS_PER_NODE": str(job.gpu_count),
    }

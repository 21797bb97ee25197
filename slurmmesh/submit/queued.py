"""A job in Slurm's queue: watched to its end, or cancelled."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from pathlib import Path

from slurmmesh.config import Settings
from slurmmesh.errors import SubmitError
from slurmmesh.slurm.client import JobRef, SlurmClient
from slurmmesh.slurm.watch import JobWatch
from slurmmesh.submit.interrupts import Interrupts

_LOOK_EVERY_S = 0.1
Follow = Callable[[Path, Callable[[], bool]], None]


def wait(watch: JobWatch, interrupts: Interrupts) -> None:
    """Return when the job is over, or at the first interrupt.

    Raises:
        SubmitError: the job can never start; it has been cancelled.
    """
    while not interrupts and not watch.is_over():
        time.sleep(_LOOK_EVERY_S)


def follow(watch: JobWatch, interrupts: Interrupts, show: Follow) -> None:
    """As ``wait``, while ``show`` shows the folder of each attempt until its function is true.

    Raises:
        SubmitError: the job can never start; it has been cancelled.
    """

    def enough() -> bool:
        return bool(interrupts) or watch.is_over()

    def is_shown(attempt: Path) -> bool:
        return enough() or watch.attempt != attempt

    shown = None
    while not enough():
        if watch.attempt != shown and watch.has_started():
            shown = watch.attempt
            show(shown, functools.partial(is_shown, shown))
        else:  # it waits, or could be shown no more
            time.sleep(_LOOK_EVERY_S)
    if watch.attempt != shown and watch.has_started():  # it was over soon
        show(watch.attempt, lambda: True)


def cancel(
    ref: JobRef, settings: Settings, interrupts: Interrupts, tell: Callable[[str], None]
) -> None:
    """Cancel a job and wait until Slurm has ended it, for ``stop_grace_s`` at most.

    Another interrupt ends the waiting.
    """
    seen = len(interrupts.received)
    client = SlurmClient(settings)
    tell(f"cancelling job {ref}")
    try:
        client.cancel(ref)
        deadline = time.monotonic() + settings.stop_grace_s
        while time.monotonic() < deadline and len(interrupts.received) == seen:
            info = client.job(ref)
            if info is None or info.state.is_over:
                tell(f"job {ref} is cancelled")
                return
            time.sleep(_LOOK_EVERY_S * 2)
    except SubmitError as error:
        tell(f"job {ref} may still be there: {error}")
        return
    tell(f"job {ref} is being cancelled; Slurm has not yet ended it (squeue --jobs {ref.id})")

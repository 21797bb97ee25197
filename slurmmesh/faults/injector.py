"""Fires the faults of a schedule at a running job."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.faults.aim import Hit, aim
from slurmmesh.faults.plan import FaultPlan
from slurmmesh.faults.schedule import Shot, schedule
from slurmmesh.recovery.records import Target
from slurmmesh.telemetry import emit as emit_event


class Injector:
    """A thread that hits replicas as a schedule says, from ``start()`` to ``stop()``.

    Before each shot it emits a ``fault`` event, whose ``t`` is the time just before the signal
    is sent; for a shot that hit nobody a ``fault_skipped`` event with the reason, and a
    ``fault_failed`` event if the signal could not be sent. Shots missed because this process
    was suspended are not fired later in a burst.

    Args:
        plans: what to inject; not empty.
        replicas: how many replicas there are.
        targets: gives the processes as they are now; called before each shot.
        fire: sends a signal to a process: ``fire(target, signum)``.
        seed: decides the victims.
        survivors: how many ready replicas each shot must leave.
        emit: writes an event: ``emit(kind, **fields)``.
        clock: seconds that never go back.
        wait: waits for at most so many seconds, returns early with True once stopped; for
            tests in virtual time.

    Raises:
        UsageError: no plan, or too few replicas for any shot ever to be fired.
    """

    def __init__(
        self,
        plans: Sequence[FaultPlan],
        replicas: int,
        targets: Callable[[], Sequence[Target]],
        fire: Callable[[Target, int], object],
        *,
        seed: int = 0,
        survivors: int = 1,
        emit: Callable[..., Any] = emit_event,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], bool] | None = None,
    ) -> None:
        if not plans:
            raise UsageError("no fault to inject: give at least one plan, as in kill@3s")
        if replicas <= survivors:
            raise UsageError(
                f"these faults can never fire: of {replicas} replicas {survivors} must always "
                f"be left, so at least {survivors + 1} are needed"
            )
        self._plans = tuple(plans)
        self._shots = schedule(self._plans, replicas, seed)
        self._targets = targets
        self._fire = fire
        self._survivors = survivors
        self._emit = emit
        self._clock = clock
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._thread = threading.Thread(target=self._run, name="fault-injector", daemon=True)
        self._shot: dict[tuple[str, int], int] = {}  # (mesh, rank) -> pid that was hit last
        self.fired = 0
        self.skipped = 0

    def start(self) -> None:
        """Begin: the first shot comes one interval from now. Can be called once."""
        self._thread.start()

    def stop(self) -> None:
        """Fire nothing more; returns when the thread has ended. Can be called again."""
        self._stopped.set()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join()

    def __enter__(self) -> Injector:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def _run(self) -> None:
        started = self._clock()
        for shot in self._shots:
            late_s = self._clock() - started - shot.at_s
            if late_s >= shot.plan.every_s:
                continue
            if self._wait(max(0.0, -late_s)) or self._stopped.is_set():
                return
            self._shoot(shot)

    def _shoot(self, shot: Shot) -> None:
        try:
            decision = aim(shot, self._present_targets(), self._survivors)
        except Exception as error:
            self._skip(shot, f"the targets are not known: {error}")
            return
        if not isinstance(decision, Hit):
            self._skip(shot, decision.reason)
            return
        target = decision.target
        who = {
            "fault": shot.plan.kind,
            "replica": target.replica,
            "mesh": target.mesh,
            "rank": target.rank,
            "host": target.host,
            "pid": target.pid,
        }
        extra = {} if decision.meant_for is None else {"meant_for": decision.meant_for}
        self._emit("fault", **who, **extra)
        try:
            self._fire(target, shot.plan.signal)
        except Exception as error:
            # The job goes on without this fault; a report must not count it as one.
            self._emit("fault_failed", **who, error=f"{type(error).__name__}: {error}")
            return
        self._shot[target.mesh, target.rank] = target.pid
        self.fired += 1

    def _present_targets(self) -> list[Target]:
        """The targets, of which those hit already are not ready until they were replaced.

        News of a death takes a moment: two shots close together must not both find the victim
        of the first alive, or the second takes the last replica to heal from.
        """
        targets = []
        for target in self._targets():
            key = target.mesh, target.rank
            if self._shot.get(key) == target.pid and target.ready:
                targets.append(replace(target, ready=False))
            else:
                self._shot.pop(key, None)
                targets.append(target)
        return targets

    def _skip(self, shot: Shot, reason: str) -> None:
        self.skipped += 1
        self._emit("fault_skipped", fault=shot.plan.kind, replica=shot.replica, reason=reason)

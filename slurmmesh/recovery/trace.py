"""Each recovery as one trace: from a replica's death to its next committed step. Pure.

Times are told by whoever saw them; this module puts them in order, and says which events to
write. Times of different hosts are compared as they are: a phase is never negative, but clocks
that differ by more than a phase takes shift it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slurmmesh.telemetry import PHASES, durations

FAULT_AGE_S = 10.0
"""A fault explains a death of the same process at most so long after it."""

Emit = tuple[str, dict[str, Any]]
"""Kind and fields of an event to write; ``t`` is among the fields."""


@dataclass
class _Recovery:
    number: int
    replica: int
    signal: str
    step: int | None = None
    earlier: int = 0
    """Deaths of the same replica before this one from which it had not come back yet."""
    times: dict[str, float] = field(default_factory=dict)


class RecoveryTracer:
    """Follows all replicas of a run. A replica that dies again on its way begins a new recovery."""

    def __init__(self) -> None:
        self._open: dict[int, _Recovery] = {}
        self._count = 0
        self._faults: dict[int, float] = {}
        self.completed = 0
        """Deaths whose replica has committed a step again since."""

    def fault(self, pid: int, at: float) -> None:
        """A fault is about to be fired at a process: its death begins then."""
        self._faults[pid] = at

    def died(self, replica: int, pid: int, signal: str, at: float, seen_at: float) -> list[Emit]:
        """A process of a replica died, as its host saw ``at`` and the controller ``seen_at``."""
        fired = self._faults.pop(pid, None)
        begun = fired if fired is not None and 0 <= at - fired <= FAULT_AGE_S else at
        self._count += 1
        recovery = _Recovery(self._count, replica, signal)
        superseded = self._open.get(replica)
        if superseded is not None:
            recovery.earlier = superseded.earlier + 1
        self._open[replica] = recovery
        return self._reach(recovery, "died", begun) + self._reach(recovery, "detected", seen_at)

    def run_was_at(self, replica: int, step: int) -> None:
        """The run had committed so many steps when this replica died."""
        recovery = self._open.get(replica)
        if recovery is not None:
            recovery.step = max(step, recovery.step or 0)

    def reach(self, replica: int, phase: str, at: float, step: int | None = None) -> list[Emit]:
        """A replica reached a phase. Ignored if it is not on its way back, or was there before."""
        recovery = self._open.get(replica)
        if recovery is None or phase in recovery.times:
            return []
        emitted = self._reach(recovery, phase, at)
        if phase == PHASES[-1]:
            del self._open[replica]
            self.completed += 1 + recovery.earlier
            emitted.append(("recovered", self._summary(recovery, step)))
        return emitted

    def give_up(self, replica: int) -> None:
        """This replica does not come back."""
        self._open.pop(replica, None)

    @staticmethod
    def _reach(recovery: _Recovery, phase: str, at: float) -> list[Emit]:
        # A phase cannot be reached before the one before it, whatever another host's clock says.
        at = max([at, *recovery.times.values()])
        recovery.times[phase] = at
        fields = {"t": at, "recovery": recovery.number, "replica": recovery.replica}
        return [("recovery", {**fields, "phase": phase})]

    @staticmethod
    def _summary(recovery: _Recovery, step: int | None) -> dict[str, Any]:
        # The step it takes part in is not lost; those in between were taken without it.
        lost = None
        if step is not None and recovery.step is not None:
            lost = max(0, step - recovery.step - 1)
        return {
            "t": recovery.times[PHASES[-1]],
            "recovery": recovery.number,
            "replica": recovery.replica,
            "signal": recovery.signal,
            **durations(recovery.times),
            "steps_lost": lost,
        }

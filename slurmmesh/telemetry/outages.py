"""When which replica was down, and what each fault cost, derived from a history. Pure.

A replica is down from the instant it was hit (a fault fired at it, or the death its recovery
begins with) until it commits a step as a participant again. Overlapping causes make one outage.
All times are seconds since the epoch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property

from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.records import Fault, Recovery

Span = tuple[float, "float | None"]
"""From when, until when; None where the end never came."""


@dataclass
class FaultOutcome:
    """What a fault did.

    Attributes:
        back_s: seconds from the fault to the victim's next committed step as a participant;
            None if it never came back, or the victim is no replica.
        stalls: survivor → seconds from the fault to its next committed step. A survivor has
            committed before and neither was down at the time nor went down before that step.
    """

    fault: Fault
    back_s: float | None = None
    stalls: dict[int, float] = field(default_factory=dict)


class Timeline:
    """The outages of a history as it is now. Make a new one when events were added."""

    def __init__(self, history: RunHistory) -> None:
        run = history.run
        self._history, self._run = history, run
        self._commits: dict[int, list[float]] = {}
        self._taking_part: dict[int, list[float]] = {}
        for index, replica in run.replicas.items():
            self._commits[index] = sorted(step.t for step in replica.steps)
            self._taking_part[index] = sorted(s.t for s in replica.steps if s.participating)
        self._recoveries: dict[int, list[Recovery]] = {}
        for recovery in run.recoveries.values():
            if recovery.replica is not None and recovery.times:
                self._recoveries.setdefault(recovery.replica, []).append(recovery)
        self._ends: dict[tuple[int | None, str, int | None], list[float]] = {}
        for end in history.exits:
            self._ends.setdefault((end.pid, end.mesh, end.rank), []).append(end.t)

    @cached_property
    def bounds(self) -> tuple[float, float] | None:
        """Start and end of the run; None if there was none.

        A run that never said it ended, ends with the job, or with the last event of its own.
        """
        run = self._run
        if run.first_t is None or run.last_t is None:
            return None
        start = run.started_at if run.started_at is not None else run.first_t
        end = run.ended_at if run.ended_at is not None else self._history.job_ended_at
        return start, max(start, run.last_t if end is None else end)

    @cached_property
    def outages(self) -> dict[int, list[Span]]:
        """Replica → its outages, in order and apart from each other."""
        return {
            index: _union([(hit, self._back(index, alive_from)) for hit, alive_from in hits])
            for index, hits in self._hits.items()
        }

    @cached_property
    def outcomes(self) -> list[FaultOutcome]:
        """What each fault did, by time."""
        result = []
        for fault in sorted(self._run.faults, key=lambda fault: fault.t):
            outcome = FaultOutcome(fault)
            if fault.replica is not None:
                back = self._back(fault.replica, self._died(fault))
                outcome.back_s = None if back is None else back - fault.t
            for index, commits in self._commits.items():
                at = bisect_right(commits, fault.t)
                if index == fault.replica or not 0 < at < len(commits):
                    continue
                if not self._was_down(index, fault.t, commits[at]):
                    outcome.stalls[index] = commits[at] - fault.t
            result.append(outcome)
        return result

    @property
    def availability(self) -> float | None:
        """Share of the run's replica-seconds not lost to outages, 0 to 1; None without a run."""
        replicas = self._run.size
        if self.bounds is None or self.bounds[1] <= self.bounds[0] or replicas == 0:
            return None
        start, end = self.bounds
        lost = 0.0
        for spans in self.outages.values():
            for hit, back in spans:
                until = end if back is None else min(end, back)
                lost += max(0.0, until - max(start, hit))
        return min(1.0, max(0.0, 1.0 - lost / (replicas * (end - start))))

    @cached_property
    def lanes(self) -> dict[int, list[tuple[float, float]]]:
        """Replica → the spans of time it took part in, within the run.

        A replica takes part from its first committed step as a participant, outages left out.
        """
        if self.bounds is None:
            return {}
        start, end = self.bounds
        result = {}
        for index in sorted(self._run.replicas):
            steps = self._taking_part[index]
            at: float | None = max(start, steps[0]) if steps else None
            spans: list[tuple[float, float]] = []
            for hit, back in self.outages.get(index, []):
                if at is None:
                    break
                spans.append((at, min(end, hit)))
                at = None if back is None else max(at, back)
            if at is not None:
                spans.append((at, end))
            result[index] = [(a, b) for a, b in spans if a < b]
        return result

    @cached_property
    def participation(self) -> list[tuple[float, int]]:
        """(time, replicas taking part from then on); the last point is the end of the run."""
        if self.bounds is None:
            return []
        start, end = self.bounds
        changes = Counter({start: 0})
        for spans in self.lanes.values():
            for since, until in spans:
                changes[since] += 1
                if until < end:
                    changes[until] -= 1
        number, points = 0, []
        for t in sorted(changes):
            number += changes[t]
            points.append((t, number))
        if points[-1][0] < end:
            points.append((end, number))
        return points

    @property
    def full_restarts(self) -> int:
        """How often the whole training began anew.

        That is each start of the job after its first, and each time all replicas were without
        their state at once and training went on afterwards: nobody was left to heal from.
        """
        changes: list[tuple[float, int]] = []
        for index, hits in self._hits.items():
            spans = _union([(hit, self._healed(index, alive_from)) for hit, alive_from in hits])
            for hit, healed in spans:
                changes.append((hit, 1))
                if healed is not None:
                    changes.append((healed, -1))
        last_commit = max((times[-1] for times in self._commits.values() if times), default=0.0)
        count = max(0, self._history.job_starts - 1)
        without_state = 0
        # At one instant -1 sorts first: a replica healed just as the next one goes was its donor.
        for t, change in sorted(changes):
            without_state += change
            if change > 0 and without_state == self._run.size and t < last_commit:
                count += 1
        return count

    @cached_property
    def _hits(self) -> dict[int, list[tuple[float, float]]]:
        """Replica → (when it was hit, from when on what it does is its successor's doing)."""
        hits: dict[int, list[tuple[float, float]]] = {}
        for fault in self._run.faults:
            if fault.replica is not None:
                hits.setdefault(fault.replica, []).append((fault.t, self._died(fault)))
        for index, recoveries in self._recoveries.items():
            starts = [min(recovery.times.values()) for recovery in recoveries]
            hits.setdefault(index, []).extend((start, start) for start in starts)
        return hits

    def _died(self, fault: Fault) -> float:
        """When the victim's process ended, if that is told; else when the fault was fired.

        A victim may commit between the time on the fault and the signal's arrival; that step is
        no return.
        """
        ends = self._ends.get((fault.pid, fault.mesh, fault.rank), [])
        return min((t for t in ends if t >= fault.t), default=fault.t)

    def _back(self, index: int, after: float) -> float | None:
        """A replica's first committed step as a participant after an instant."""
        step = _first_after(self._taking_part.get(index, []), after)
        return step if step is not None else self._phase_after(index, "stepped", after)

    def _healed(self, index: int, after: float) -> float | None:
        """When a replica had its state again: as told, and at the latest with that step."""
        known = (self._phase_after(index, "healed", after), self._back(index, after))
        return min((t for t in known if t is not None), default=None)

    def _phase_after(self, index: int, phase: str, after: float) -> float | None:
        times = (own.times.get(phase) for own in self._recoveries.get(index, []))
        return min((t for t in times if t is not None and t > after), default=None)

    def _was_down(self, index: int, start: float, end: float) -> bool:
        return any(
            hit <= end and (back is None or back > start)
            for hit, back in self.outages.get(index, [])
        )


def _first_after(times: list[float], t: float) -> float | None:
    at = bisect_right(times, t)
    return times[at] if at < len(times) else None


def _union(spans: list[Span]) -> list[Span]:
    """The spans of time covered by any of those given, in order and apart from each other."""
    union: list[Span] = []
    for start, end in sorted(spans, key=lambda span: span[0]):
        if not union or (union[-1][1] is not None and union[-1][1] < start):
            union.append((start, end))
            continue
        since, until = union[-1]
        union[-1] = (since, None if until is None or end is None else max(until, end))
    return union

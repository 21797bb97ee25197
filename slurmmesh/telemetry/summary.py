"""The figures of a run, computed from its history. Pure.

What each figure means is told in ``docs/events.md``; what is not known is None, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from slurmmesh.telemetry.fields import finite
from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.outages import Timeline
from slurmmesh.telemetry.phases import DURATIONS

_FINAL_STEPS = 10
PHASE_NAMES = (*DURATIONS, "total_s")
"""The durations in ``phases``: the six of a recovery, and from death to first step."""


def percentile(values: Sequence[float], percent: float) -> float | None:
    """Return a percentile by linear interpolation between the two nearest ranks.

    That is numpy's default: rank ``(n - 1) * percent / 100``, counted from 0 in the sorted values.
    None for no values.
    """
    if not values:
        return None
    ordered = sorted(values)
    rank = (len(ordered) - 1) * percent / 100
    low = math.floor(rank)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (rank - low)


def spread(values: Iterable[float]) -> dict[str, float | int | None]:
    """Return ``{p50, p95, p99, n}`` of some seconds; the percentiles are None where n is 0."""
    known = list(values)
    figures = {f"p{percent}": _rounded(percentile(known, percent)) for percent in (50, 95, 99)}
    return {**figures, "n": len(known)}


def losses_by_step(history: RunHistory, last: int = 0) -> dict[int, list[float]]:
    """Return step → losses of the replicas that took part in it, by step.

    Where a step was committed twice by a replica (training began anew) the later one counts.
    With ``last``, only about so many last steps are looked at.
    """
    losses: dict[int, dict[int, float]] = {}
    for index, replica in history.run.replicas.items():
        for step in replica.steps[-last:]:
            if step.participating and step.loss is not None:
                losses.setdefault(step.step, {})[index] = step.loss
    return {number: list(losses[number].values()) for number in sorted(losses)}


def summarize(history: RunHistory) -> dict[str, Any]:
    """Return the content of ``summary.json``: plain values that JSON can hold, no NaN."""
    run, timeline = history.run, Timeline(history)
    losses = losses_by_step(history)
    numbers = [step.step for replica in run.replicas.values() for step in replica.steps]
    outcomes = timeline.outcomes
    bounds = timeline.bounds
    return {
        "job_id": history.job_id or None,
        "cluster": history.cluster or None,
        "nodes": history.nodes,
        "status": _status(history),
        "mode": run.mode,
        "sync_every": run.sync_every,
        "seed": run.seed,
        "replicas": run.size,
        "steps": max(numbers, default=0),
        "wall_s": None if bounds is None else _rounded(bounds[1] - bounds[0]),
        "first_loss": _mean(next(iter(losses.values()), [])),
        "final_loss": final_loss(losses),
        "faults": len(run.faults),
        "recovered": sum(outcome.back_s is not None for outcome in outcomes),
        "full_restarts": timeline.full_restarts,
        "replica_availability": _rounded(timeline.availability),
        "survivor_stall_s": spread(s for outcome in outcomes for s in outcome.stalls.values()),
        "replica_back_s": spread(o.back_s for o in outcomes if o.back_s is not None),
        "phases": {name: spread(_durations(history, name)) for name in PHASE_NAMES},
    }


def _status(history: RunHistory) -> str:
    """``run_ended``'s word; a run that never said how it ended is ``unfinished``."""
    if history.run.status:
        return history.run.status
    return "unfinished" if history.has_run else "no run"


def _durations(history: RunHistory, name: str) -> list[float]:
    """One duration of each complete recovery that has it."""
    known = [own.duration(name) for own in history.run.recoveries.values() if own.complete]
    return [seconds for seconds in known if seconds is not None]


def final_loss(losses: dict[int, list[float]]) -> float | None:
    """The mean over the last ten committed steps; ``losses`` as from :func:`losses_by_step`."""
    if not losses:
        return None
    last = max(losses)
    return _mean(
        [loss for number, own in losses.items() if number > last - _FINAL_STEPS for loss in own]
    )


def _mean(values: list[float]) -> float | None:
    """The mean; None without values, and where one of them is not finite: that run diverged."""
    if not values or not all(math.isfinite(value) for value in values):
        return None
    return finite(sum(values) / len(values))


def _rounded(value: float | None) -> float | None:
    """To the microsecond: what a clock read through an event log is good for."""
    return None if value is None else round(value, 6)

"""The phases of a recovery and the durations between them: names and arithmetic. Pure."""

from __future__ import annotations

from collections.abc import Mapping

PHASES = ("died", "detected", "decided", "respawned", "rendezvoused", "healed", "stepped")
"""The seven times of a recovery, in order. One that reaches the last is complete."""

DURATIONS = ("detect_s", "decide_s", "respawn_s", "rendezvous_s", "state_s", "first_step_s")
"""The six durations, each from one phase to the next, in order."""


def durations(times: Mapping[str, float]) -> dict[str, float]:
    """The durations that the times of the phases (seconds since the epoch) allow.

    Holds those of :data:`DURATIONS` whose both ends are known, and ``total_s`` of a complete
    recovery. A phase that is missing before one that is known took no time of its own; none is
    negative, for clocks of two hosts may disagree by more than a phase takes.
    """
    reached = [place for place, phase in enumerate(PHASES) if phase in times]
    known: dict[str, float] = {}
    if not reached:
        return known
    before = times[PHASES[reached[0]]]
    for place in range(reached[0] + 1, reached[-1] + 1):
        at = max(before, times.get(PHASES[place], before))
        known[DURATIONS[place - 1]] = at - before
        before = at
    if PHASES[0] in times and PHASES[-1] in times:
        known["total_s"] = max(0.0, times[PHASES[-1]] - times[PHASES[0]])
    return known

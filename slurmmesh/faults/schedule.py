"""When which replica is hit: the same for the same seed."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from slurmmesh.errors import UsageError
from slurmmesh.faults.plan import FaultPlan


@dataclass(frozen=True)
class Shot:
    """One fault to come.

    Attributes:
        at_s: seconds after the start of the schedule.
        plan: what to do.
        replica: index of the replica it is meant for.
        draw: in [0, 1); picks the process within that replica.
    """

    at_s: float
    plan: FaultPlan
    replica: int
    draw: float


def schedule(plans: Sequence[FaultPlan], replicas: int, seed: int) -> Iterator[Shot]:
    """All shots of all plans, in order of time, without end.

    Each plan fires at every multiple of its interval. Victims are drawn evenly and apart for
    each plan, so that adding a plan does not change another's. Raises UsageError if there is
    no replica.
    """
    if replicas < 1:
        raise UsageError("faults need at least one replica to hit")
    streams = (_shots(plan, replicas, f"{seed}/{i}/{plan}") for i, plan in enumerate(plans))
    return heapq.merge(*streams, key=lambda shot: shot.at_s)


def _shots(plan: FaultPlan, replicas: int, seed: str) -> Iterator[Shot]:
    rng = random.Random(seed)
    count = 0
    while True:
        count += 1
        yield Shot(count * plan.every_s, plan, rng.randrange(replicas), rng.random())

"""Whom a shot hits, given who is there: a pure decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slurmmesh.faults.schedule import Shot
from slurmmesh.recovery.records import Target


@dataclass(frozen=True)
class Hit:
    """The shot goes to ``target``. ``meant_for`` is set if that is not the replica scheduled."""

    target: Target
    meant_for: int | None = None


@dataclass(frozen=True)
class Miss:
    """The shot goes to nobody, for this reason."""

    reason: str


def aim(shot: Shot, targets: Sequence[Target], survivors: int) -> Hit | Miss:
    """Whom ``shot`` hits.

    A replica is ready if all its processes are. One that is not is never hit: the next ready
    one after it is, round and round. At least ``survivors`` ready replicas must be left, for
    one that comes back heals from another.
    """
    processes: dict[int, list[Target]] = {}
    for target in targets:
        processes.setdefault(target.replica, []).append(target)
    ready = sorted(r for r, members in processes.items() if all(m.ready for m in members))
    if not ready:
        return Miss("no replica is ready")
    if len(ready) <= survivors:
        return Miss(f"only {len(ready)} ready, and {survivors} must be left to heal from")
    replica = next((r for r in ready if r >= shot.replica), ready[0])
    members = sorted(processes[replica], key=lambda member: member.rank)
    return Hit(
        members[int(shot.draw * len(members))],
        meant_for=None if replica == shot.replica else shot.replica,
    )

"""What the event log of an attempt tells of it: hosts, meshes, training, failures."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.meshes import Mesh, MeshHistory
from slurmmesh.telemetry.records import Recovery
from slurmmesh.telemetry.summary import summarize
from slurmmesh.telemetry.tail import EventTail

EVENTS = "events.jsonl"
# Of each kind, the last so many are told.
_RECENT = 10


@dataclass
class Overview:
    """An event log, folded.

    Attributes:
        history: of the job and its training.
        meshes: of its processes.
        trouble: why the log was not read, or not all of it; empty if it was.
    """

    history: RunHistory = field(default_factory=RunHistory)
    meshes: MeshHistory = field(default_factory=MeshHistory)
    trouble: str = ""

    @property
    def is_empty(self) -> bool:
        """Whether the log told nothing."""
        return self.history.first_t is None

    @property
    def recoveries(self) -> list[Recovery]:
        """Of replicas, by the time of their death."""
        known = [own for own in self.history.run.recoveries.values() if own.times]
        return sorted(known, key=lambda own: min(own.times.values()))


def read_overview(attempt: Path) -> Overview:
    """Read the event log of an attempt, as far as it goes. Never raises."""
    overview = Overview()
    path = attempt / EVENTS
    if not os.path.exists(path):
        overview.trouble = "there is no event log"
        return overview
    tail = EventTail(path)
    while True:
        try:
            events = tail.read()
        except OSError as error:
            overview.trouble = f"its event log cannot be read: {error.strerror or error}"
            return overview
        for event in events:
            overview.history.add(event)
            overview.meshes.add(event)
        if tail.at_end:
            break
    overview.history.malformed += tail.malformed
    if overview.history.malformed:
        overview.trouble = f"{overview.history.malformed} lines of its event log make no sense"
    return overview


def as_data(overview: Overview) -> dict[str, Any]:
    """The same for ``--json``: plain values, times in seconds since the epoch."""
    history = overview.history
    hosts = sorted(history.hosts.values(), key=lambda host: host.index)
    return {
        "hosts": [{"name": host.name, "address": host.address, "up": host.up} for host in hosts],
        "lost_hosts": [
            {"t": lost.t, "name": lost.name, "cause": lost.cause}
            for lost in overview.meshes.lost_hosts
        ],
        "meshes": [_mesh(mesh) for mesh in overview.meshes.meshes],
        "training": _training(overview) if history.has_run else None,
        "failures": [vars(failure) for failure in recent(overview.meshes.failures)],
        "failure_count": len(overview.meshes.failures),
        "event_log": overview.trouble or None,
    }


def recent(found: Sequence[Any]) -> Sequence[Any]:
    """The last few."""
    return found[-_RECENT:]


def _mesh(mesh: Mesh) -> dict[str, Any]:
    return {
        "name": mesh.name,
        "sizes": mesh.sizes,
        "supervised": mesh.supervised,
        "ranks": {
            state: sorted(number for number, rank in mesh.ranks.items() if rank.state == state)
            for state in mesh.count()
        },
        "restarts": sum(rank.restarts for rank in mesh.ranks.values()),
    }


def _training(overview: Overview) -> dict[str, Any]:
    run = overview.history.run
    latest = run.latest
    return {
        **summarize(overview.history),
        "steps_wanted": run.steps_wanted,
        "participants": latest.participants if latest else None,
        "quorum": latest.quorum if latest else None,
        "replica_states": {
            str(index): replica.state for index, replica in sorted(run.replicas.items())
        },
        "recoveries": [
            {
                "replica": recovery.replica,
                "t": min(recovery.times.values()),
                "phase": recovery.phase,
                "total_s": recovery.duration("total_s"),
                "complete": recovery.complete,
            }
            for recovery in recent(overview.recoveries)
        ],
    }

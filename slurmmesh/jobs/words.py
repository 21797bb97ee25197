"""How the status of a job is told in a few lines. Pure."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterable, Iterator, Sequence

from slurmmesh.jobs.overview import Overview, recent
from slurmmesh.jobs.views import View
from slurmmesh.slurm.times import format_time
from slurmmesh.telemetry import wording
from slurmmesh.telemetry.meshes import Failure, Mesh
from slurmmesh.telemetry.narrate import progress_text
from slurmmesh.telemetry.records import Recovery, Run
from slurmmesh.telemetry.wording import things

_LABEL = 11
# So many of a list are named; of the others their number is told.
_NAMED = 8
_ORDER = ("up", "starting", "restarting", "failed", "dead", "ended")


def tell(view: View, overview: Overview, now: float) -> list[str]:
    """A job in lines: its name, then one line for each thing that is known of it."""
    parts = [*_of_job(view, now), *_of_events(view, overview)]
    lines = [wording.one_line(f"job {view.id}  {view.job.name}")]
    for label, text in parts:
        lines.append(f"  {label:{_LABEL}} {wording.one_line(text, 2000)}".rstrip())
    return lines


def _of_job(view: View, now: float) -> Iterator[tuple[str, str]]:
    status = view.status
    yield "state", f"{status.state.value}{_how_long(view, now)}"
    if status.why:
        yield "", status.why
    if status.nodes:
        yield "nodes", f"{view.nodes}: {status.nodes}" if view.nodes else status.nodes
    elif view.nodes and status.state.is_waiting:
        yield "nodes", f"{view.nodes} asked for"
    if view.info and view.info.started and status.state.is_waiting:
        yield "expected", f"Slurm means to start it at {_moment(view.info.started)}"
    restarts = max(status.restarts, len(view.job.attempts) - 1)
    if restarts:
        yield "attempts", f"{restarts + 1}: it was started again {_times(restarts)}"
    if os.path.exists(view.job.folder):
        yield "folder", str(view.job.attempts[-1])


def _how_long(view: View, now: float) -> str:
    elapsed, limit = view.elapsed(now), view.time_limit
    if elapsed is None:
        return ""
    text = (
        f" for {format_time(elapsed)}"
        if not view.status.state.is_over
        else (f" after {format_time(elapsed)}")
    )
    if limit is None or view.status.state.is_over:
        return text
    if math.isinf(limit):
        return f"{text}, no time limit"
    return f"{text} of {format_time(limit)}, {format_time(max(0.0, limit - elapsed))} left"


def _of_events(view: View, overview: Overview) -> Iterator[tuple[str, str]]:
    history = overview.history
    if not overview.is_empty:
        yield from _hosts(overview)
        for mesh in recent(overview.meshes.meshes):
            yield "mesh", _mesh(mesh)
        if history.has_run:
            yield "training", _training(history.run, progress_text(history))
            yield from (("replicas", line) for line in _replicas(history.run))
        for failure in recent(overview.meshes.failures):
            yield "failure", _failure(failure)
        for recovery in recent(overview.recoveries):
            yield "recovery", _recovery(recovery)
    if overview.trouble and os.path.exists(view.job.folder) and not view.status.state.is_waiting:
        yield "note", overview.trouble


def _hosts(overview: Overview) -> Iterator[tuple[str, str]]:
    history = overview.history
    up = sum(host.up for host in history.hosts.values())
    wanted = (history.nodes or 0) + (history.spares or 0)
    spares = f", {things(history.spares, 'spare')} among them" if history.spares else ""
    yield "hosts", f"{up} of {wanted or len(history.hosts)} up{spares}"
    for lost in recent(overview.meshes.lost_hosts):
        because = f": {lost.cause}" if lost.cause else ""
        yield "lost", f"{_moment(lost.t)}  {lost.name}{because}"


def _mesh(mesh: Mesh) -> str:
    sizes = ", ".join(f"{label}: {size}" for label, size in mesh.sizes.items())
    counts = mesh.count()
    states = []
    for state in _ORDER:
        if number := counts[state]:
            ranks = [rank for rank, own in mesh.ranks.items() if own.state == state]
            named = f" (rank {_some(ranks)})" if state in ("restarting", "failed", "dead") else ""
            states.append(f"{number} {state}{named}")
    restarts = sum(rank.restarts for rank in mesh.ranks.values())
    again = f"; started again {_times(restarts)}" if restarts else ""
    what = f"{mesh.name} {{{sizes}}}" if sizes else mesh.name
    return f"{what}: {things(len(mesh.ranks), 'rank')}: {', '.join(states) or 'none'}{again}"


def _training(run: Run, progress: str) -> str:
    if run.ended_at is None:
        return progress
    error = f": {run.error}" if run.error else ""
    return f"{run.status or 'ended'}{error}; {progress}"


def _replicas(run: Run) -> list[str]:
    states: dict[str, list[int]] = {}
    for index, replica in sorted(run.replicas.items()):
        states.setdefault(replica.state, []).append(index)
    if not states:
        return []
    return ["; ".join(f"{_some(indexes)} {state}" for state, indexes in states.items())]


def _failure(failure: Failure) -> str:
    rank = "?" if failure.rank is None else failure.rank
    where = f" on {failure.host}" if failure.host else ""
    pid = "" if failure.pid is None else f" (pid {failure.pid})"
    back = ""
    if failure.back_s is not None:
        back = f"; a new process after {wording.seconds(failure.back_s)}"
    return (
        f"{_moment(failure.t)}  rank {rank} of {failure.mesh!r}{where}{pid} {failure.cause}{back}"
    )


def _recovery(recovery: Recovery) -> str:
    at = _moment(min(recovery.times.values()))
    total = recovery.duration("total_s")
    if recovery.complete:
        return f"{at}  replica {recovery.replica} trained again after {wording.seconds(total)}"
    return f"{at}  replica {recovery.replica} is not back: it has {recovery.phase}"


def _some(numbers: Sequence[int]) -> str:
    """``1, 2, 3`` and how many more."""
    shown = ", ".join(map(str, numbers[:_NAMED]))
    left = len(numbers) - _NAMED
    return f"{shown} and {left} more" if left > 0 else shown


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def join(blocks: Iterable[Sequence[str]]) -> str:
    """Several jobs, an empty line between them."""
    return "\n".join("".join(f"{line}\n" for line in lines) for lines in blocks)

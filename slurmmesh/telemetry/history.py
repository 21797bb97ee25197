"""What happened in a job, folded from its events. Pure: no clock, no I/O.

An event log is written by many processes, some of which were killed while writing, and may be of
another version of slurmmesh. So nothing here trusts it: fields that are missing or of the wrong
type count as unknown, unknown kinds are passed over, and no order between replicas is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from slurmmesh.telemetry import fields
from slurmmesh.telemetry.events import Event
from slurmmesh.telemetry.phases import DURATIONS, PHASES
from slurmmesh.telemetry.records import (
    Fault,
    Host,
    InnerStep,
    ProcExit,
    Quorum,
    Recovery,
    Run,
    SkippedFault,
    Step,
)

# A count out of a broken line must not make a view allocate that many rows.
_MOST_REPLICAS_FORESEEN = 10_000


@dataclass
class RunHistory:
    """Everything an event log tells: feed it events with :meth:`add`.

    A program may train more than once in a job; ``run`` is the last training run, and
    ``earlier_runs`` counts those before it. A job that Slurm started again goes on with the same
    run, for its lost time is part of it, and counts in ``job_starts``.

    Attributes:
        malformed: events without a usable kind or time, and what a reader adds to it.
        proc_count: processes alive, as far as the log tells.
    """

    job_id: str = ""
    cluster: str = ""
    nodes: int | None = None
    spares: int | None = None
    argv: list[str] = field(default_factory=list)
    job_starts: int = 0
    job_ended_at: float | None = None
    exit_code: int | None = None
    hosts: dict[int, Host] = field(default_factory=dict)
    procs: set[tuple[str, int]] = field(default_factory=set)
    exits: list[ProcExit] = field(default_factory=list)
    lighthouse_exits: int = 0
    run: Run = field(default_factory=Run)
    earlier_runs: int = 0
    first_t: float | None = None
    last_t: float | None = None
    malformed: int = 0
    _job_starts_at_run: int = 0

    @property
    def proc_count(self) -> int:
        """Processes alive, as far as the log tells."""
        return len(self.procs)

    @property
    def has_run(self) -> bool:
        """Whether the log tells of any training."""
        return self.run.started_at is not None or bool(self.run.replicas)

    def add(self, event: Event) -> None:
        """Fold in one event. Never raises: what cannot be understood is left out."""
        t, kind = fields.time(event.get("t")), event.get("kind")
        if t is None or not isinstance(kind, str):
            self.malformed += 1
            return
        self.first_t = t if self.first_t is None else min(self.first_t, t)
        self.last_t = t if self.last_t is None else max(self.last_t, t)
        fold_job = _JOB_KINDS.get(kind)
        if fold_job is not None:
            fold_job(self, t, event)
        fold_run = _RUN_KINDS.get(kind)
        if fold_run is not None:
            fold_run(self.run, t, event)
            self.run.touch(t)


def fold(events: Iterable[Event]) -> RunHistory:
    """Return the history of a whole sequence of events."""
    history = RunHistory()
    for event in events:
        history.add(event)
    return history


# --- Events about the job ----------------------------------------------------------------------


def _job_started(history: RunHistory, t: float, event: Event) -> None:
    history.job_starts += 1
    history.job_id = fields.text(event.get("job_id")) or history.job_id
    history.cluster = fields.text(event.get("cluster")) or history.cluster
    history.nodes = fields.count(event.get("nodes"))
    history.spares = fields.count(event.get("spares"))
    words = event.get("argv")
    history.argv = [fields.text(word) for word in words] if isinstance(words, list) else []
    history.job_ended_at = history.exit_code = None
    history.hosts.clear()
    history.procs.clear()


def _job_ended(history: RunHistory, t: float, event: Event) -> None:
    history.job_ended_at = t
    history.exit_code = fields.integer(event.get("exit_code"))


def _host_up(history: RunHistory, t: float, event: Event) -> None:
    index = fields.integer(event.get("host"))
    if index is not None:
        name, address = fields.text(event.get("name")), fields.text(event.get("address"))
        history.hosts[index] = Host(index, name, address)


def _host_lost(history: RunHistory, t: float, event: Event) -> None:
    index = fields.integer(event.get("host"))
    if index is not None:
        host = history.hosts.setdefault(index, Host(index, fields.text(event.get("name")), ""))
        host.up = False


def _proc_up(history: RunHistory, t: float, event: Event) -> None:
    rank = fields.integer(event.get("rank"))
    if rank is not None:
        history.procs.add((fields.text(event.get("mesh")), rank))


def _proc_exited(history: RunHistory, t: float, event: Event) -> None:
    rank, mesh = fields.integer(event.get("rank")), fields.text(event.get("mesh"))
    if rank is not None:
        history.procs.discard((mesh, rank))
    history.exits.append(
        ProcExit(
            t=t,
            mesh=mesh,
            rank=rank,
            host=fields.text(event.get("host")),
            pid=fields.integer(event.get("pid")),
            signal=fields.signal_name(event.get("signal")),
            exit_code=fields.integer(event.get("exit_code")),
            detail=fields.text(event.get("detail")),
            stderr=fields.text(event.get("stderr")),
            expected=event.get("expected") is True,
        )
    )


def _lighthouse_exited(history: RunHistory, t: float, event: Event) -> None:
    history.lighthouse_exits += 1


def _new_run(history: RunHistory, t: float, event: Event) -> None:
    """Begin a run, unless the job was started again in the middle of one."""
    same_job = history.job_starts == history._job_starts_at_run
    if history.run.started_at is not None and same_job:
        history.earlier_runs += 1
        history.run = Run()
    history._job_starts_at_run = history.job_starts


# --- Events about the run ----------------------------------------------------------------------


def _run_started(run: Run, t: float, event: Event) -> None:
    run.started_at = t if run.started_at is None else run.started_at
    run.ended_at = run.status = None
    run.declared = fields.count(event.get("replicas"))
    run.procs_per_replica = fields.count(event.get("procs_per_replica"))
    run.steps_wanted = fields.count(event.get("steps"))
    run.mode = fields.text(event.get("mode")) or None
    run.sync_every = fields.integer(event.get("sync_every"))
    run.seed = fields.integer(event.get("seed"))
    run.fault_plan = fields.text(event.get("faults"))
    for index in range(min(run.declared or 0, _MOST_REPLICAS_FORESEEN)):
        run.replica(index)


def _step(run: Run, t: float, event: Event) -> None:
    index, number = fields.count(event.get("replica")), fields.count(event.get("step"))
    if index is None or number is None:
        return
    replica = run.replica(index)
    participating = event.get("participating") is not False
    if event.get("committed") is False:
        replica.not_committed += 1
        return
    step = Step(
        t=t,
        step=number,
        loss=fields.number(event.get("loss")),
        participants=fields.count(event.get("participants")),
        quorum=fields.integer(event.get("quorum")),
        participating=participating,
        duration_s=fields.duration(event.get("duration_s")),
    )
    replica.steps.append(step)
    replica.become("training" if participating else "healing", t)
    if run.latest is None or t >= run.latest.t:
        run.latest = step


def _inner_step(run: Run, t: float, event: Event) -> None:
    index, number = fields.count(event.get("replica")), fields.count(event.get("step"))
    inner, loss = fields.count(event.get("inner")), fields.number(event.get("loss"))
    if index is not None and number is not None and inner is not None and loss is not None:
        run.replica(index).inner.append(InnerStep(t, number, inner, loss))


def _fault(run: Run, t: float, event: Event) -> None:
    fault = _fault_of(t, event)
    run.faults.append(fault)
    if fault.replica is not None:
        run.replica(fault.replica).become("down", t)


def _fault_failed(run: Run, t: float, event: Event) -> None:
    """Take back a fault that was announced and could not be fired."""
    failed = _fault_of(t, event)
    for position in reversed(range(len(run.faults))):
        if run.faults[position][1:] == failed[1:]:
            del run.faults[position]
            break
    if failed.replica is not None:
        run.replica(failed.replica).become("training", t)
    reason = fields.text(event.get("error"))
    run.skipped_faults.append(SkippedFault(t, failed.kind, failed.replica, reason))


def _fault_skipped(run: Run, t: float, event: Event) -> None:
    fault, reason = _fault_of(t, event), fields.text(event.get("reason"))
    run.skipped_faults.append(SkippedFault(t, fault.kind, fault.replica, reason))


def _fault_of(t: float, event: Event) -> Fault:
    return Fault(
        t=t,
        kind=fields.text(event.get("fault")) or "fault",
        replica=fields.count(event.get("replica")),
        mesh=fields.text(event.get("mesh")),
        rank=fields.integer(event.get("rank")),
        host=fields.text(event.get("host")),
        pid=fields.integer(event.get("pid")),
    )


def _recovery(run: Run, t: float, event: Event) -> None:
    number, phase = fields.integer(event.get("recovery")), fields.text(event.get("phase"))
    if number is None or phase not in PHASES:
        return
    recovery = run.recoveries.setdefault(number, Recovery(number, None))
    if recovery.replica is None:
        recovery.replica = fields.count(event.get("replica"))
    recovery.times.setdefault(phase, t)
    recovery.complete = recovery.complete or phase == "stepped"
    if recovery.replica is None:
        return
    replica = run.replica(recovery.replica)
    replica.deaths += phase == "died"
    states = {"died": "down", "stepped": "training"}
    replica.become(states.get(phase, phase), t)


def _recovered(run: Run, t: float, event: Event) -> None:
    number = fields.integer(event.get("recovery"))
    if number is None:
        return
    recovery = run.recoveries.setdefault(number, Recovery(number, None))
    if recovery.replica is None:
        recovery.replica = fields.count(event.get("replica"))
    recovery.complete = True
    recovery.signal = fields.signal_name(event.get("signal"))
    recovery.steps_lost = fields.count(event.get("steps_lost"))
    for name in (*DURATIONS, "total_s"):
        seconds = fields.duration(event.get(name))
        if seconds is not None:
            recovery.reported[name] = seconds


def _replica_started(run: Run, t: float, event: Event) -> None:
    run.device = fields.text(event.get("device")) or run.device


def _quorum(run: Run, t: float, event: Event) -> None:
    run.quorums.append(
        Quorum(
            t=t,
            replica=fields.count(event.get("replica")),
            quorum=fields.integer(event.get("quorum")),
            participants=fields.count(event.get("participants")),
            step=fields.count(event.get("step")),
            healed_from=fields.count(event.get("healed_from")),
        )
    )


def _replica_finished(run: Run, t: float, event: Event) -> None:
    index = fields.count(event.get("replica"))
    if index is not None:
        replica = run.replica(index)
        replica.finished_at = t
        replica.become("finished", t)


def _run_ended(run: Run, t: float, event: Event) -> None:
    run.ended_at = t
    run.status = fields.text(event.get("status")) or None
    run.error = fields.text(event.get("error"))


_JOB_KINDS: dict[str, Callable[[RunHistory, float, Event], None]] = {
    "job_started": _job_started,
    "job_ended": _job_ended,
    "host_up": _host_up,
    "host_lost": _host_lost,
    "proc_up": _proc_up,
    "proc_exited": _proc_exited,
    "lighthouse_exited": _lighthouse_exited,
    "run_started": _new_run,
}

_RUN_KINDS: dict[str, Callable[[Run, float, Event], None]] = {
    "run_started": _run_started,
    "replica_started": _replica_started,
    "step": _step,
    "inner_step": _inner_step,
    "fault": _fault,
    "fault_failed": _fault_failed,
    "fault_skipped": _fault_skipped,
    "recovery": _recovery,
    "recovered": _recovered,
    "quorum": _quorum,
    "replica_finished": _replica_finished,
    "run_ended": _run_ended,
}

"""Tells an event log in plain sentences, one line for each event worth one. Pure."""

from __future__ import annotations

from slurmmesh.telemetry import fields, wording
from slurmmesh.telemetry.events import Event
from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.phases import DURATIONS
from slurmmesh.telemetry.summary import final_loss, losses_by_step
from slurmmesh.telemetry.wording import things

# Above this many hosts or replicas, only the last one's arrival and end is told.
_MANY = 8


class Narrator:
    """Turns the events of one job into lines.

    Args:
        history: the history of the same job, to which each event was added before it is told.
    """

    def __init__(self, history: RunHistory) -> None:
        self._history = history
        self._quorum: int | None = None
        self._latest_told: float | None = None
        self._line_t: float | None = None

    def tell(self, event: Event) -> str | None:
        """Return the line for an event, or None where it is not worth one."""
        t, kind = fields.time(event.get("t")), event.get("kind")
        teller = _TELLERS.get(kind) if isinstance(kind, str) else None
        if t is None or teller is None:
            return None
        text = teller(self, event)
        return None if text is None else self._stamp(t, text)

    def progress(self) -> str | None:
        """Return a line on where the training is.

        None if nothing was committed since the last one, or the training has ended.
        """
        run = self._history.run
        if run.latest is None or run.latest.t == self._latest_told or run.ended_at:
            return None
        self._latest_told = run.latest.t
        # It tells how things stand after all that was told before, so it is never of before that.
        t = run.latest.t if self._line_t is None else max(run.latest.t, self._line_t)
        return self._stamp(t, progress_text(self._history))

    def _stamp(self, t: float, text: str) -> str:
        self._line_t = t
        start = self._history.first_t
        since = 0.0 if start is None else max(0.0, t - start)
        return f"[slurmmesh +{since:.1f}s] {wording.one_line(text, 400)}"

    # --- one method a kind ---

    def _job_started(self, event: Event) -> str:
        history = self._history
        nodes = "" if history.nodes is None else f" on {things(history.nodes, 'host')}"
        spares = f" and {things(history.spares, 'spare')}" if history.spares else ""
        again = f" (start {history.job_starts})" if history.job_starts > 1 else ""
        return f"job {history.job_id or '?'} started{nodes}{spares}{again}"

    def _host_up(self, event: Event) -> str | None:
        hosts = self._history.hosts
        up = sum(host.up for host in hosts.values())
        wanted = (self._history.nodes or 0) + (self._history.spares or 0)
        if wanted > _MANY and up != wanted:
            return None
        host = hosts.get(fields.integer(event.get("host")) or 0)
        of = f" of {wanted}" if wanted else ""
        return f"host {host.name if host else '?'} is up ({up}{of})"

    def _host_lost(self, event: Event) -> str:
        name = fields.text(event.get("name")) or f"{fields.integer(event.get('host'))}"
        return f"host {name} is lost{_because(event.get('cause'))}"

    def _proc_exited(self, event: Event) -> str | None:
        if event.get("expected") is True:
            return None
        end = self._history.exits[-1]
        if end.signal:
            how = f"was killed by {end.signal}"
        elif end.exit_code is not None:
            how = f"exited with code {end.exit_code}"
        else:
            how = "is lost"
        last = end.stderr.strip().split("\n")[-1].strip()
        said = f"; its last words: {last}" if last else ""
        rank = "?" if end.rank is None else end.rank
        where = f" on {end.host}" if end.host else ""
        pid = "" if end.pid is None else f" (pid {end.pid})"
        return f"rank {rank} of {end.mesh!r}{where}{pid} {how}{_because(end.detail)}{said}"

    def _proc_restarted(self, event: Event) -> str:
        rank, mesh = fields.integer(event.get("rank")), fields.text(event.get("mesh"))
        incarnation = fields.integer(event.get("incarnation"))
        return f"rank {rank} of {mesh!r} restarted (incarnation {incarnation})"

    def _run_started(self, event: Event) -> str:
        run = self._history.run
        mode = f", {run.mode}" if run.mode else ""
        sync = f" with a sync every {things(run.sync_every, 'step')}" if run.sync_every else ""
        steps = "" if run.steps_wanted is None else f", {things(run.steps_wanted, 'step')}"
        plan = run.fault_plan.replace("\n", ", ")
        faults = f", faults {plan}" if plan else ""
        return f"training starts: {things(run.size, 'replica')}{mode}{sync}{steps}{faults}"

    def _fault(self, event: Event) -> str:
        fault = self._history.run.faults[-1]
        whom = f"rank {fault.rank} of {fault.mesh!r}" if fault.mesh else "?"
        if fault.replica is not None:
            whom = f"replica {fault.replica} ({whom})"
        where = f" on {fault.host}" if fault.host else ""
        pid = "" if fault.pid is None else f", pid {fault.pid}"
        return f"fault {fault.kind}: {whom}{where}{pid}"

    def _not_fired(self, event: Event) -> str:
        fault = self._history.run.skipped_faults[-1]
        whom = "" if fault.replica is None else f" at replica {fault.replica}"
        return f"fault {fault.kind}{whom} was not fired{_because(fault.reason)}"

    def _recovered(self, event: Event) -> str | None:
        recovery = self._history.run.recoveries.get(fields.integer(event.get("recovery")) or 0)
        if recovery is None:
            return None
        parts = [
            f"{name[:-2].replace('_', ' ')} {wording.seconds(took)}"
            for name in DURATIONS
            if (took := recovery.duration(name)) is not None
        ]
        detail = f" ({', '.join(parts)})" if parts else ""
        total = wording.seconds(recovery.duration("total_s"))
        return f"replica {recovery.replica} is back after {total}{detail}"

    def _quorum_changed(self, event: Event) -> str | None:
        quorum = self._history.run.quorums[-1]
        if quorum.quorum is None or quorum.quorum == self._quorum:
            return None
        self._quorum = quorum.quorum
        if quorum.participants is None:
            return f"quorum {quorum.quorum}"
        return f"quorum {quorum.quorum}: {things(quorum.participants, 'participant')}"

    def _lighthouse_exited(self, event: Event) -> str:
        return f"the Lighthouse died{_because(event.get('cause') or event.get('detail'))}"

    def _lighthouse_up(self, event: Event) -> str | None:
        if not fields.integer(event.get("incarnation")):
            return None
        return f"the Lighthouse is back at {fields.text(event.get('address'))}"

    def _replica_finished(self, event: Event) -> str | None:
        replicas = self._history.run.replicas.values()
        finished = sum(replica.finished_at is not None for replica in replicas)
        if len(replicas) > _MANY and finished != len(replicas):
            return None
        step, loss = fields.count(event.get("step")), fields.number(event.get("loss"))
        return (
            f"replica {fields.count(event.get('replica'))} finished"
            f" at step {step}, loss {wording.loss(loss)}"
        )

    def _run_ended(self, event: Event) -> str:
        run = self._history.run
        loss = f", final loss {wording.loss(final_loss(losses_by_step(self._history)))}"
        return f"training {run.status or 'ended'}{loss}{_because(run.error)}"

    def _job_ended(self, event: Event) -> str:
        code = self._history.exit_code
        return f"job ended with exit code {'?' if code is None else code}"


_TELLERS = {
    "job_started": Narrator._job_started,
    "host_up": Narrator._host_up,
    "host_lost": Narrator._host_lost,
    "proc_exited": Narrator._proc_exited,
    "proc_restarted": Narrator._proc_restarted,
    "run_started": Narrator._run_started,
    "fault": Narrator._fault,
    "fault_failed": Narrator._not_fired,
    "fault_skipped": Narrator._not_fired,
    "recovered": Narrator._recovered,
    "quorum": Narrator._quorum_changed,
    "lighthouse_exited": Narrator._lighthouse_exited,
    "lighthouse_up": Narrator._lighthouse_up,
    "replica_finished": Narrator._replica_finished,
    "run_ended": Narrator._run_ended,
    "job_ended": Narrator._job_ended,
}


def progress_text(history: RunHistory) -> str:
    """Return one line on the training: step, loss, participants, quorum, faults, recoveries."""
    run, latest = history.run, history.run.latest
    if latest is None:
        return "no step committed yet"
    wanted = "" if run.steps_wanted is None else f"/{run.steps_wanted}"
    taking_part = "?" if latest.participants is None else latest.participants
    parts = [
        f"step {latest.step}{wanted}",
        f"loss {wording.loss(latest.loss)}",
        f"participants {taking_part}/{run.size}",
        *([] if latest.quorum is None else [f"quorum {latest.quorum}"]),
        f"faults {len(run.faults)}",
        f"recovered {sum(recovery.complete for recovery in run.recoveries.values())}",
    ]
    return ", ".join(parts)


def _because(cause: object) -> str:
    text = fields.text(cause).strip().split("\n")[0]
    return f": {text}" if text else ""

"""The controller's side of a run: starts the replicas, and acts when one of them dies.

One thread, the caller's, takes messages from a queue: what happens to processes, what replicas
report, what their calls return. It never waits for anything else, so that a death is passed on
within a millisecond: the others are told to stop waiting for the dead one while supervision
starts it again; then it is called to join them.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable
from typing import Any

from slurmmesh import telemetry
from slurmmesh.actors import Future, ProcEvent
from slurmmesh.errors import CallTimeout, LinkClosed, RestartBudgetSpent, SupervisionError
from slurmmesh.hosts import HostMesh
from slurmmesh.recovery.assignment import Assignment
from slurmmesh.recovery.errors import StateLost
from slurmmesh.recovery.lighthouse import LighthouseService
from slurmmesh.recovery.records import Plan, ReplicaRecord, Stoppable, Target
from slurmmesh.recovery.requirements import PRELOAD
from slurmmesh.recovery.trace import Emit, RecoveryTracer
from slurmmesh.recovery.worker import ControlActor, Outcome, Report, ReporterActor, TrainerActor
from slurmmesh.supervision import Supervision

_STOP_GRACE_S = 2.0
_ABORT_GRACE_S = 0.2
"""For trainers that are in the middle of a step when the run fails or is interrupted."""

_GROUP_DEATH_S = 2.0
"""How long news of a death may come after an error that it caused within the group."""


class Orchestrator:
    """Runs one plan on the given hosts; ``run`` returns the outcome of each replica.

    Args:
        hosts: a mesh over one dimension, ``hosts``.
    """

    def __init__(self, plan: Plan, hosts: HostMesh) -> None:
        self._plan = plan
        self._hosts = hosts
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._replicas: list[ReplicaRecord] = []
        self._tracer = RecoveryTracer()
        self._lighthouse: LighthouseService | None = None
        self._injector: Stoppable | None = None
        self._progress = 0
        self._last_told = 0
        self._ending = False
        self._failure: BaseException | None = None
        self.deaths = 0

    @property
    def recovered(self) -> int:
        """Deaths whose replica has committed a step again since."""
        return self._tracer.completed

    def run(self) -> list[Outcome | None]:
        """Start everything, see the run through, stop everything.

        Returns:
            for each replica the outcome of its first process; None if it was left out.

        Raises:
            ActorError: the user's code raised; the first such error, with its traceback.
            RestartBudgetSpent: a replica or the Lighthouse died too often.
            StateLost: all replicas were down at one time.
            SupervisionError: something needed could not be started.
        """
        try:
            self._start_all()
            while not all(replica.settled for replica in self._replicas):
                self._inbox.get()()
                if self._failure is not None:
                    raise self._failure
            return [replica.outcome for replica in self._replicas]
        finally:
            self._stop_all()

    # ------------------------------------------------------------------ starting

    def _start_all(self) -> None:
        plan = self._plan
        for index, host in enumerate(plan.placement):
            self._replicas.append(self._spawn(index, self._hosts.slice(hosts=host)))
        self._lighthouse = LighthouseService(
            self._hosts.slice(hosts=0),
            plan.settings,
            plan.lighthouse_restarts,
            lambda event: self._inbox.put(lambda: self._on_lighthouse(event)),
            lambda error: self._inbox.put(lambda: self._fail(error)),
            self._members,
        )
        for replica in self._replicas:
            self._open_store(replica)

    def _spawn(self, index: int, host: HostMesh) -> ReplicaRecord:
        plan = self._plan
        procs = host.spawn_procs(
            {"procs": plan.procs_per_replica},
            name=f"replica{index}",
            env={**plan.settings.environment(), **plan.env},
            preload=(PRELOAD, *plan.preload),
            supervise=plan.restarts,
            gpus_per_proc=plan.gpus_per_proc,
            first_gpu=(plan.gpus_per_proc or 0) * plan.first_devices[index],
        )
        procs.on_event(lambda event: self._inbox.put(lambda: self._on_proc(index, event)))
        trainer = procs.spawn("trainer", TrainerActor)
        control = procs.spawn("control", ControlActor)
        reporter = procs.slice(procs=0).spawn("reporter", ReporterActor)
        return ReplicaRecord(index, procs, trainer, control, reporter)

    def _open_store(self, replica: ReplicaRecord) -> None:
        """First thing of every start; the rest follows when the store's address comes."""
        self._ask_for_reports(replica)
        self._then(replica, replica.control.pid.call(), self._on_pids)
        self._then(
            replica, replica.trainer.slice(procs=0).open_store.call_one(), self._on_store_opened
        )

    def _on_pids(self, replica: ReplicaRecord, pids: Any) -> None:
        replica.pids = dict(enumerate(pids.values()))

    def _on_store_opened(self, replica: ReplicaRecord, store: tuple[str, int]) -> None:
        replica.store = store
        if replica.start > 0:
            self._call_run(replica)
            return
        prepared = replica.trainer.prepare.call(self._assignment(replica))
        self._then(replica, prepared, self._on_prepared)

    def _on_prepared(self, replica: ReplicaRecord, _values: Any) -> None:
        replica.state = "prepared"
        # All begin together; one that died meanwhile comes by itself.
        if not any(other.state == "preparing" for other in self._replicas):
            for other in self._replicas:
                if other.state == "prepared":
                    self._call_run(other)

    def _call_run(self, replica: ReplicaRecord) -> None:
        plan = self._plan
        replica.state = "training"
        returned = replica.trainer.run.call(plan.function, plan.args, self._assignment(replica))
        self._then(replica, returned, self._on_returned)

    def _assignment(self, replica: ReplicaRecord) -> Assignment:
        plan = self._plan
        assert self._lighthouse is not None
        assert replica.store is not None
        return Assignment(
            replica=replica.index,
            replicas=len(self._replicas),
            lighthouse=self._lighthouse.address,
            store=replica.store,
            group_size=plan.procs_per_replica,
            incarnation=replica.start,
            progress=0 if replica.start == 0 else self._progress,
            alive_from=tuple(other.alive_from for other in self._replicas),
            gone=tuple(other.index for other in self._replicas if other.state == "left_out"),
            first_device=(
                plan.first_devices[replica.index] if plan.gpus_per_proc is None else None
            ),
            threads=plan.threads,
            settings=plan.settings,
        )

    # ------------------------------------------------------------------ messages

    def _then(
        self, replica: ReplicaRecord, future: Future[Any], act: Callable[[ReplicaRecord, Any], None]
    ) -> None:
        """Have ``act(replica, value)`` called from the loop, unless the replica died meanwhile."""
        start = replica.start

        def fail(error: BaseException) -> None:
            if replica.start == start and replica.state != "down":
                self._failure = error

        def done() -> None:
            if replica.start != start or replica.state == "down":
                return
            error = future.exception(0)
            if error is None:
                act(replica, future.get(0))
            elif isinstance(error, SupervisionError):
                pass  # a death; the process's event tells it, with its cause
            elif self._plan.procs_per_replica == 1:
                fail(error)
            else:
                # It may be how this process noticed that another of its group died.
                self._later(_GROUP_DEATH_S, lambda: fail(error))

        future.add_done_callback(lambda _future: self._inbox.put(done))

    def _later(self, delay_s: float, act: Callable[[], None]) -> None:
        """Have ``act`` called from the loop after a while."""
        timer = threading.Timer(delay_s, self._inbox.put, (act,))
        timer.daemon = True
        timer.start()

    def _on_proc(self, index: int, event: ProcEvent) -> None:
        replica = self._replicas[index]
        if event.kind == "exited" and not event.expected:
            self._on_death(replica, event)
        elif event.kind == "given_up" and event.cause and event.cause.kind == "host_lost":
            self._on_host_lost(replica)
        elif event.kind == "given_up" and event.cause and event.cause.kind == "not_started":
            self._failure = SupervisionError(event.cause.describe())
        elif event.kind == "given_up":
            self._give_up(f"replica {index}", event, self._plan.restarts)
        elif event.kind == "restarted":
            self._on_restarted(replica, event)

    def _on_death(self, replica: ReplicaRecord, event: ProcEvent) -> None:
        if event.incarnation != replica.start or replica.state == "down":
            return  # another process of a group that is down already
        if replica.state == "finished":
            replica.told_all = True
            return
        assert event.cause is not None
        self.deaths += 1
        how = event.cause.signal_name or f"exit code {event.cause.exit_code}"
        self._write(self._tracer.died(replica.index, event.pid, how, event.at, event.seen_at))
        replica.alive_from = replica.start + 1
        # Also to those that do not train yet: the quorum that lets them in may hold the dead one.
        for other in self._replicas:
            if other is not replica and other.hears:
                self._tell(other.control.peer_died, replica.index, replica.start)
        self._write(self._tracer.reach(replica.index, "decided", time.time()))
        replica.state, replica.member = "down", ""
        replica.has_state = replica.stepped = replica.ending = replica.told_all = False
        replica.back.clear()
        if self._ending:
            self._leave_out(replica)
        elif self._progress and not any(other.has_state for other in self._replicas):
            self._failure = StateLost(
                f"all {len(self._replicas)} replicas were down at one time; the last step known to "
                f"be committed is {self._last_told}: nobody has the state any more. "
                f"{event.cause.describe()}"
            )

    def _on_restarted(self, replica: ReplicaRecord, event: ProcEvent) -> None:
        replica.start = replica.alive_from = event.incarnation
        replica.back.add(event.rank)
        if len(replica.back) < self._plan.procs_per_replica or replica.state == "left_out":
            return
        self._write(self._tracer.reach(replica.index, "respawned", event.seen_at))
        # With nothing committed yet everybody has the state: that of the beginning.
        replica.has_state = self._progress == 0
        replica.state = "restarting"
        self._open_store(replica)

    def _on_host_lost(self, replica: ReplicaRecord) -> None:
        """The replica cannot be started again, but the others train on."""
        if replica.state == "finished":
            return
        self._leave_out(replica)
        for other in self._replicas:
            if other.hears:
                self._tell(other.control.peer_gone, replica.index)
        if not any(not other.settled or other.state == "finished" for other in self._replicas):
            self._failure = StateLost("the hosts of all replicas are lost")

    def _give_up(self, who: str, event: ProcEvent, rules: Supervision) -> None:
        last = f" Last: {event.cause.describe()}" if event.cause else ""
        lines = "".join(f"\n  | {line}" for line in event.cause.stderr_tail) if event.cause else ""
        self._failure = RestartBudgetSpent(
            f"{who} died more than {rules.max_restarts} times within {rules.within_s:g} s and is "
            f"not started again.{last}{lines}"
        )

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def _on_lighthouse(self, event: ProcEvent) -> None:
        if event.kind == "given_up":
            self._give_up("the Lighthouse", event, self._plan.lighthouse_restarts)

    def _members(self) -> tuple[str, ...]:
        """Names of the replicas that live, for a new Lighthouse. From any thread."""
        return tuple(
            replica.member
            for replica in self._replicas
            if replica.member and replica.state == "training"
        )

    # ------------------------------------------------------------------ reports

    def _ask_for_reports(self, replica: ReplicaRecord) -> None:
        self._then(replica, replica.reporter.next.call_one(), self._on_reports)

    def _on_reports(self, replica: ReplicaRecord, reports: list[Report]) -> None:
        for report in reports:
            self._on_report(replica, report.word, report.details)
        if reports:
            self._ask_for_reports(replica)

    def _on_report(self, replica: ReplicaRecord, word: str, details: dict[str, Any]) -> None:
        step = details["step"]
        self._last_told = max(self._last_told, step)
        if word == "saw_death":
            self._progress = max(self._progress, step)
            self._tracer.run_was_at(details["peer"], step)
        elif word in ("waits", "ready"):
            if word == "waits" or replica.start > 0:
                for other in self._replicas:
                    if other is not replica and other.state == "training":
                        self._tell(other.control.call_together)
        elif word == "joined":
            replica.member = details["member"]
            self._write(self._tracer.reach(replica.index, "rendezvoused", details["at"]))
        elif word == "healed":
            replica.has_state = True
            self._progress = max(self._progress, step)
            self._write(self._tracer.reach(replica.index, "healed", details["at"]))
        elif word == "stepped":
            replica.stepped = True
            self._progress = max(self._progress, step)
            self._write(self._tracer.reach(replica.index, "stepped", details["at"], step))
            self._inject()
        elif word == "ending":
            replica.ending = True
        elif word == "done":
            replica.told_all = True

    def _on_returned(self, replica: ReplicaRecord, outcomes: Any) -> None:
        if not all(outcome.finished for outcome in outcomes.values()):
            self._leave_out(replica)
            return
        replica.outcome = next(iter(outcomes.values()))
        replica.state = "finished"
        self._progress = max(self._progress, replica.outcome.step)
        self._ending = True
        for other in self._replicas:
            if other.state == "down":
                self._leave_out(other)
            elif other.state not in ("finished", "left_out"):
                self._tell(other.control.end_run)

    def _leave_out(self, replica: ReplicaRecord) -> None:
        """The run ends without this replica."""
        replica.state = "left_out"
        self._tracer.give_up(replica.index)

    # ------------------------------------------------------------------ faults

    def _inject(self) -> None:
        """Begin with the faults once every replica has taken a step."""
        faults = self._plan.faults
        started = all(replica.stepped for replica in self._replicas)
        if faults is not None and self._injector is None and started:
            self._injector = faults.start(len(self._replicas), self._targets, self._fire)

    def _targets(self) -> list[Target]:
        return [
            Target(
                replica=replica.index,
                mesh=replica.procs.name,
                rank=rank,
                host=host,
                pid=pid,
                ready=replica.state == "training" and replica.stepped and not replica.ending,
            )
            for replica in self._replicas
            for (rank, pid), host in zip(replica.pids.items(), replica.procs.hosts, strict=False)
        ]

    def _fire(self, target: Target, signum: int) -> None:
        at = time.time()
        self._inbox.put(lambda: self._tracer.fault(target.pid, at))
        self._replicas[target.replica].procs.send_signal(signum, target.rank)

    # ------------------------------------------------------------------ the rest

    @staticmethod
    def _tell(endpoint: Any, *args: Any) -> None:
        """Broadcast to one replica; one that is going down need not hear it."""
        with contextlib.suppress(SupervisionError, LinkClosed):
            endpoint.broadcast(*args)

    @staticmethod
    def _write(events: list[Emit]) -> None:
        for kind, fields in events:
            telemetry.emit(kind, **fields)

    def _stop_all(self) -> None:
        if self._injector is not None:
            self._injector.stop()
        in_order = all(replica.settled for replica in self._replicas)
        grace_s = _STOP_GRACE_S if in_order else _ABORT_GRACE_S
        stopping = [replica.procs.stop(grace_s) for replica in self._replicas]
        if self._lighthouse is not None:
            stopping.append(self._lighthouse.stop(grace_s))
        for future in stopping:
            with contextlib.suppress(SupervisionError, CallTimeout):
                future.get(grace_s + 5.0)

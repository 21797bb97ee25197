"""``train``: what a program calls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slurmmesh import telemetry
from slurmmesh.errors import UsageError
from slurmmesh.hosts import HostMesh
from slurmmesh.recovery.orchestrator import Orchestrator
from slurmmesh.recovery.placement import device_indices, place
from slurmmesh.recovery.records import FaultSource, Plan
from slurmmesh.recovery.requirements import require_torch
from slurmmesh.recovery.settings import RecoverySettings
from slurmmesh.recovery.worker import Outcome
from slurmmesh.supervision import Supervision
from slurmmesh.wire.codec import dumps


@dataclass(frozen=True)
class RunResult:
    """How a run ended that did not fail.

    Attributes:
        values: what the function returned, by replica (of its first process); None for one
            that is in ``left_out``.
        steps: committed steps.
        deaths: replicas that died, each time counted.
        recovered: after how many of these deaths the replica committed a step again. One that
            dies once more on its way back, and then commits, has recovered from both.
        left_out: replicas that were down at the end, or whose host was lost.
    """

    values: tuple[Any, ...]
    steps: int
    deaths: int
    recovered: int
    left_out: tuple[int, ...]


def train(
    function: Callable[..., Any],
    *args: Any,
    hosts: HostMesh,
    replicas: int = 4,
    procs_per_replica: int = 1,
    procs_per_host: int = 0,
    gpus_per_proc: int | None = None,
    threads: int = 1,
    preload: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    settings: RecoverySettings | None = None,
    restarts: Supervision | None = None,
    lighthouse_restarts: Supervision | None = None,
    faults: FaultSource | None = None,
    steps: int | None = None,
    mode: str = "",
    sync_every: int = 1,
    seed: int | None = None,
) -> RunResult:
    """Train with replicas that may die: call ``function(replica, *args)`` in each of them.

    A replica that dies is started again where it ran; it takes the state from a living one and
    goes on. The others do not stop. Returns when all replicas are done.

    Args:
        function: called in every process of every replica with its
            :class:`~slurmmesh.recovery.replica.Replica` first. It builds the model and trains in
            a session. Functions and classes of the program itself travel by value.
        hosts: where to run; replicas are spread over them evenly.
        replicas: how many. One that died needs another to heal from.
        procs_per_replica: processes in each replica, all on one host.
        procs_per_host: how many processes a host takes (``job.gpus_per_node``); 0: any number.
        gpus_per_proc: so many of its host's GPUs each process sees, and no others, also after a
            restart; None: it sees all that its host sees. See ``Replica.device_index``.
        threads: threads torch may use in each process for one operation on the CPU.
        preload: modules that each host imports once, so that restarts need not.
        env: added to the environment of the replicas.
        settings: timeouts; the defaults if None.
        restarts: how often each replica is started again; if None, 10 times within 60 s, or
            1000 times where faults are injected.
        lighthouse_restarts: the same for the Lighthouse; 20 times within 60 s if None.
        faults: faults to inject, such as ``slurmmesh.faults.Faults.parse("kill@3s")``.
        steps, mode, sync_every, seed: what is trained, for the event log: the function decides.

    Raises:
        MissingDependencyError: torch or torchft is not installed.
        UsageError: numbers that make no sense, or more replicas than the hosts take, or than they
            have GPUs for.
        ActorError: the function raised, in whichever process was first. Nothing is started
            again for that: the same would happen again. (What comes from a failing device or
            network counts as a death.)
        RestartBudgetSpent: a replica died more often than ``restarts`` allows.
        StateLost: all replicas were down at one time.
    """
    require_torch()
    if threads < 1:
        raise UsageError(f"threads must be at least 1, not {threads}")
    if gpus_per_proc is not None and (type(gpus_per_proc) is not int or gpus_per_proc < 0):
        raise UsageError(f"gpus_per_proc is a number of GPUs, or None, not {gpus_per_proc!r}")
    if faults is not None:
        faults.check(replicas)
    _check_travels(function, args)
    row = hosts.flatten("hosts")
    placement = place(replicas, procs_per_replica, row.size(), procs_per_host)
    plan = Plan(
        function=function,
        args=args,
        placement=placement,
        first_devices=device_indices(placement, procs_per_replica),
        procs_per_replica=procs_per_replica,
        gpus_per_proc=gpus_per_proc,
        threads=threads,
        preload=tuple(preload),
        env=dict(env or {}),
        settings=settings or RecoverySettings(),
        restarts=restarts or Supervision("one_for_all", 10 if faults is None else 1000, 60.0),
        lighthouse_restarts=lighthouse_restarts or Supervision("one_for_one", 20, 60.0),
        faults=faults,
    )
    telemetry.emit(
        "run_started",
        replicas=replicas,
        procs_per_replica=procs_per_replica,
        steps=steps,
        mode=mode,
        sync_every=sync_every,
        seed=seed,
        faults=faults.describe() if faults is not None else [],
        pid=os.getpid(),
    )
    orchestrator = Orchestrator(plan, row)
    try:
        outcomes = orchestrator.run()
    except BaseException as error:
        _tell_end(error)
        raise
    result = _result(outcomes, orchestrator)
    telemetry.emit(
        "run_ended",
        status="finished",
        error="",
        left_out=list(result.left_out),
    )
    return result


def _check_travels(function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """See that the function can be sent to the replicas. Raises UsageError if not."""
    try:
        dumps((function, args))
    except Exception as error:
        name = getattr(function, "__name__", repr(function))
        raise UsageError(
            f"{name} and its arguments cannot be sent to the replicas: {error}. Make such objects "
            "inside the function, or import the module that has them there"
        ) from error


def _tell_end(error: BaseException) -> None:
    cancelled = isinstance(error, (KeyboardInterrupt, SystemExit))
    telemetry.emit(
        "run_ended",
        status="cancelled" if cancelled else "failed",
        error="" if cancelled else f"{type(error).__name__}: {error}",
    )


def _result(outcomes: list[Outcome | None], orchestrator: Orchestrator) -> RunResult:
    finished = [outcome for outcome in outcomes if outcome is not None]
    return RunResult(
        values=tuple(None if outcome is None else outcome.value for outcome in outcomes),
        steps=max((outcome.step for outcome in finished), default=0),
        deaths=orchestrator.deaths,
        recovered=orchestrator.recovered,
        left_out=tuple(index for index, outcome in enumerate(outcomes) if outcome is None),
    )

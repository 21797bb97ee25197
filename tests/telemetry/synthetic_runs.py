"""Makes event logs that look like a real job's. SYNTHETIC: no figure in them was measured.

A small discrete-event simulation of lock-step training with replicas that die and heal. It knows
the answers (``Simulated.stalls`` and the like), so that tests can compare them with what the
code under test derives from the events alone.
"""

from __future__ import annotations

import itertools
import json
import math
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from slurmmesh.telemetry.phases import DURATIONS, PHASES

EPOCH = 1_700_000_000.0


@dataclass
class Simulated:
    """A log and what is true about it."""

    events: list[dict[str, Any]] = field(default_factory=list)
    stalls: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    down_s: float = 0.0
    wall_s: float = 0.0

    def write(self, folder: Path) -> Path:
        """Write the log into a job folder, which is made."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "events.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in self.events))
        return path


def simulate(
    seed: int = 0,
    replicas: int = 4,
    steps: int = 60,
    mode: str = "ddp",
    fault_every: float | None = 3.0,
    step_s: float = 0.15,
    killed: bool = False,
    cluster: str = "local",
) -> Simulated:
    """Simulate a job: one host a replica, one proc a replica, a kill every so many seconds.

    ``killed`` leaves out ``run_ended`` and ``job_ended``, as a SIGKILL of the controller would.
    """
    rng = random.Random(seed)
    out = Simulated()
    inner = 5 if mode == "diloco" else 0

    def put(t: float, kind: str, **rest: Any) -> None:
        out.events.append({"t": t, "kind": kind, **rest})

    hosts = [f"node{index}" for index in range(replicas)]
    pids = [1000 + index for index in range(replicas)]
    incarnations = [0] * replicas
    now = EPOCH
    put(
        now,
        "job_started",
        job_id=f"synthetic-{seed}",
        cluster=cluster,
        nodes=replicas,
        spares=0,
        argv=["train_llama.py", "--replicas", str(replicas)],
    )
    for index, host in enumerate(hosts):
        now += 0.02
        put(now, "host_up", host=index, name=host, address=f"10.0.0.{index + 1}", pid=900 + index)
    plan = [] if fault_every is None else [f"kill@{fault_every:g}s"]
    now += 0.1
    started = now
    put(
        now,
        "run_started",
        replicas=replicas,
        procs_per_replica=1,
        steps=steps,
        mode=mode,
        sync_every=inner or None,
        seed=seed,
        faults=plan,
        pid=800,
    )
    put(now, "lighthouse_up", address="10.0.0.1:29510", pid=801, incarnation=0)
    for index, host in enumerate(hosts):
        mesh = f"replica{index}"
        put(now, "procs_spawned", mesh=mesh, ranks=[0], hosts=[host])
        put(now + 0.05, "proc_up", mesh=mesh, rank=0, host=host, pid=pids[index], incarnation=0)
    now += 0.8
    quorum = 1

    def enter_quorum(t: float, members: list[int], step: int, healed: dict[int, int]) -> None:
        for index in members:
            put(
                t,
                "quorum",
                replica=index,
                quorum=quorum,
                participants=len(members),
                step=step,
                healed_from=healed.get(index),
            )

    def loss(step: int, index: int) -> float:
        return 1.6 + 4.0 * math.exp(-step / 18) + 0.06 * rng.random() + 0.004 * index

    enter_quorum(now, list(range(replicas)), 0, {})
    rejoin: dict[int, float] = {}  # victim → when it can take part again
    recovery_of: dict[int, dict[str, Any]] = {}
    next_fault = math.inf if fault_every is None else now + fault_every
    recovery = 0
    for step in range(1, steps + 1):
        duration = step_s * (0.9 + 0.2 * rng.random())
        waiting: list[tuple[float, int]] = []  # kills whose stall ends with this step
        up = [index for index in range(replicas) if index not in rejoin]
        if now + duration >= next_fault and len(up) > 1:
            victim, hit = rng.choice(up), max(now, next_fault)
            mesh = f"replica{victim}"
            put(
                hit,
                "fault",
                fault="kill",
                replica=victim,
                mesh=mesh,
                rank=0,
                host=hosts[victim],
                pid=pids[victim],
            )
            took = [0.004, 0.0005, 0.02, 0.15 + 0.1 * rng.random(), 0.06, 0.0]
            times = [hit]
            for seconds in took[:5]:
                times.append(times[-1] + seconds)
            put(
                times[1],
                "proc_exited",
                mesh=mesh,
                rank=0,
                host=hosts[victim],
                pid=pids[victim],
                signal="SIGKILL",
                exit_code=None,
                detail="",
                stderr=[],
                expected=False,
            )
            for phase, at in zip(PHASES[:4], times[:4], strict=True):
                put(at, "recovery", recovery=recovery, replica=victim, phase=phase)
            pids[victim] += 100
            incarnations[victim] += 1
            put(
                times[3],
                "proc_up",
                mesh=mesh,
                rank=0,
                host=hosts[victim],
                pid=pids[victim],
                incarnation=incarnations[victim],
            )
            put(times[3], "proc_restarted", mesh=mesh, rank=0, incarnation=incarnations[victim])
            for phase, at in zip(PHASES[4:6], times[4:6], strict=True):
                put(at, "recovery", recovery=recovery, replica=victim, phase=phase)
            rejoin[victim] = times[5]
            recovery_of[victim] = {"id": recovery, "times": times, "hit": hit}
            recovery += 1
            up.remove(victim)
            duration = hit + 0.25 + 0.1 * rng.random() - now
            waiting.append((hit, victim))
            next_fault += fault_every or 0.0
            quorum += 1
            enter_quorum(now + duration - 0.05, up, step, {})
        start, now = now, now + duration
        back = sorted(index for index, at in rejoin.items() if at <= start)
        if back:
            quorum += 1
            enter_quorum(start, sorted(up + back), step - 1, dict.fromkeys(back, up[0]))
        members = sorted(up + back)
        for index in members:
            at = now + 0.001 * index
            for k in range(inner):
                put(
                    start + (at - start) * (k + 1) / (inner + 1),
                    "inner_step",
                    replica=index,
                    step=step - 1,
                    inner=k,
                    loss=loss(step - 1, index) + 0.05,
                )
            put(
                at,
                "step",
                replica=index,
                step=step,
                loss=loss(step, index),
                participants=len(members),
                quorum=quorum,
                participating=True,
                committed=True,
                duration_s=at - start,
            )
            if index in back:
                info = recovery_of.pop(index)
                del rejoin[index]
                times = [*info["times"], at]
                put(at, "recovery", recovery=info["id"], replica=index, phase="stepped")
                parts = [b - a for a, b in itertools.pairwise(times)]
                put(
                    at,
                    "recovered",
                    recovery=info["id"],
                    replica=index,
                    signal="SIGKILL",
                    **dict(zip(DURATIONS, parts, strict=True)),
                    total_s=at - info["hit"],
                    steps_lost=1,
                )
                out.back.append(at - info["hit"])
                out.down_s += at - info["hit"]
            else:
                out.stalls.extend(at - hit for hit, victim in waiting if victim != index)
    out.events.sort(key=lambda event: event["t"])
    now += 0.05
    if killed:
        now = out.events[-1]["t"]
    out.down_s += sum(now - info["hit"] for info in recovery_of.values())
    out.wall_s = now - started
    if not killed:
        for index in range(replicas):
            if index not in rejoin:
                put(now - 0.01, "replica_finished", replica=index, step=steps, loss=1.7)
        put(now, "run_ended", status="finished", error="")
        put(now + 0.1, "job_ended", exit_code=0)
    return out

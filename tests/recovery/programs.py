"""What the replicas of the tests run. It travels to them by value."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import threading
import time
from typing import Any

import torch
from torch import nn

from slurmmesh.recovery import transport


def die() -> None:
    """As a SIGKILL from outside: no goodbye of any kind."""
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def make_model(seed: int, width: int = 16) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Linear(width, 4))


def batch(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(16, 8, generator=generator)
    return x, x[:, :4] * 2 - x[:, 4:]


def masked(replica: Any) -> tuple[dict[str, str], int]:
    """Train; replica 1 dies. Returns which GPUs this process sees, and which of them it uses."""
    train(replica, 12, die_at={1: 3})
    masks = {name: value for name, value in os.environ.items() if name.endswith("VISIBLE_DEVICES")}
    return masks, replica.device_index


def fingerprint(model: nn.Module) -> float:
    return float(sum(p.detach().double().abs().sum() for p in model.parameters()))


def train(
    replica: Any,
    steps: int,
    *,
    sync_every: int = 1,
    die_at: dict[int, int] | None = None,
    die_inner: int = 0,
    width: int = 16,
    pause_s: float = 0.0,
    until_back: str = "",
    slow_until: str = "",
    tweak: Any = None,
) -> dict[str, Any]:
    """Train a small model.

    Args:
        die_at: replica → committed step before which its first start dies, between two steps;
            with DiLoCo after ``die_inner`` inner steps.
        until_back: a file; steps after ``die_at`` are slow until a restarted replica makes it.
        slow_until: a file; steps are slow until it is made.
        tweak: called with (replica, session) before the loop.
    """
    # Every replica and every start begins with other weights: only healing makes them equal.
    model = make_model(100 * replica.rank + replica.assignment.incarnation, width)
    if sync_every == 1:
        session = replica.ddp(model, torch.optim.AdamW(model.parameters(), 1e-2))
    else:
        session = replica.diloco(
            model, torch.optim.AdamW(model.parameters(), 1e-2), sync_every=sync_every
        )
    if tweak is not None:
        tweak(replica, session)
    begun_at = None
    die_at = die_at or {}
    death = (die_at.get(replica.rank), die_inner)
    trained: dict[int, int] = {}
    for step in session.steps(steps):
        if begun_at is None:
            begun_at = step.number
        if not replica.is_restart and (step.number, step.inner) == death:
            die()
        if until_back and replica.is_restart:
            open(until_back, "a").close()
        if until_back and step.number in die_at.values() and not os.path.exists(until_back):
            time.sleep(0.1)
        if slow_until and not os.path.exists(slow_until):
            time.sleep(0.05)
        time.sleep(pause_s)
        x, y = batch(step.batch)
        if session.step((session.model(x) - y).pow(2).mean()):
            trained[step.batch] = step.number
    return {
        "fingerprint": fingerprint(model),
        "begun_at": begun_at,
        "trained": trained,
        "incarnation": replica.assignment.incarnation,
    }


def die_in_allreduce(victim: int, at_sync: int) -> Any:
    """A tweak: the victim dies when it has begun the big allreduce of that sync."""

    def tweak(replica: Any, session: Any) -> None:
        if replica.rank != victim or replica.is_restart:
            return
        original = session._average_change

        def average_change() -> torch.Tensor:
            if session.step_number == at_sync:
                message = torch.ones(sum(p.numel() for p in session.model.parameters()) + 1)
                session._manager.allreduce(message)
                die()
            return original()

        session._average_change = average_change

    return tweak


def die_in_ddp_allreduce(victim: int, at_step: int) -> Any:
    """A tweak: the victim dies inside backward, when its gradients are on their way."""

    def tweak(replica: Any, session: Any) -> None:
        if replica.rank != victim or replica.is_restart:
            return
        original = session._manager.allreduce

        def allreduce(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            work = original(tensor, *args, **kwargs)
            if session.step_number == at_step and tensor.numel() > 1:
                die()
            return work

        session._manager.allreduce = allreduce

    return tweak


def die_while_healing(victim: int, times: int) -> Any:
    """A tweak: the victim's first restarts die in the middle of receiving the state."""

    def tweak(replica: Any, session: Any) -> None:
        start = replica.assignment.incarnation
        if replica.rank == victim and 0 < start <= times:
            replica.transport._receive_state = receive

    def receive(secure: Any, step: int) -> None:
        secure.sendall(transport.REQUEST.pack(b"SMst", step))
        secure.recv(1)
        die()

    return tweak


def donor_dies_while_serving(marker: str) -> Any:
    """A tweak: whoever is the first to serve a state after a restart dies in the middle of it."""

    def tweak(replica: Any, session: Any) -> None:
        original = replica.transport._answer

        def answer(secure: Any, wanted: int) -> None:
            if wanted > 0:
                try:
                    os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
                except FileExistsError:
                    pass
                else:
                    secure.sendall(b"half")
                    die()
            original(secure, wanted)

        replica.transport._answer = answer

    return tweak


def die_at_rendezvous(victim: int) -> Any:
    """A tweak: the victim's first restart dies while the new quorum connects."""

    def tweak(replica: Any, session: Any) -> None:
        if replica.rank == victim and replica.assignment.incarnation == 1:
            replica.process_group._open_store = lambda host, port: die()

    return tweak


def kill_at(at_step: int, log: str, kind: str, **which: Any) -> Any:
    """A tweak: replica 0 kills the process that an event tells of, when that step is committed."""

    def tweak(replica: Any, session: Any) -> None:
        if replica.rank != 0:
            return
        original = session._join

        def join() -> bool:
            if session.step_number == at_step:
                session._join = original
                with open(log) as lines:
                    events = [json.loads(line) for line in lines if kind in line]
                pids = [e["pid"] for e in events if which.items() <= e.items()]
                os.kill(pids[-1], signal.SIGKILL)
            return original()

        session._join = join

    return tweak


def take_the_lighthouses_port(at_step: int, log: str) -> Any:
    """A tweak: replica 0 ends the Lighthouse and keeps its port for itself."""
    kill = kill_at(at_step, log, "lighthouse_up")

    def tweak(replica: Any, session: Any) -> None:
        if replica.rank != 0:
            return
        port = int(replica.assignment.lighthouse.rpartition(":")[2])
        squatter = threading.Thread(target=listen_as_soon_as_free, args=(replica.address, port))
        squatter.daemon = True
        squatter.start()
        kill(replica, session)

    return tweak


def listen_as_soon_as_free(address: str, port: int) -> None:
    """Take a port the moment nobody listens there."""
    while True:
        with contextlib.suppress(OSError), socket.create_server((address, port)):
            time.sleep(600)
        time.sleep(0.0005)


def fail_at(replica: Any, steps: int, at: int) -> None:
    """Training code with a mistake in it, on replica 1."""
    model = make_model(0)
    session = replica.ddp(model, torch.optim.SGD(model.parameters(), 0.1))
    for step in session.steps(steps):
        if replica.rank == 1 and step.number == at:
            raise ValueError("the data has a hole")
        x, y = batch(step.batch)
        session.step((session.model(x) - y).pow(2).mean())


def always_die(replica: Any) -> None:
    """Training code that kills its process."""
    if replica.rank == 0:
        die()
    train(replica, 1000, pause_s=0.01)


def leave(replica: Any, how: str) -> None:
    """Training code that ends its process by other means."""
    if how == "exit":
        raise SystemExit(3)
    if how == "device" and not replica.is_restart and replica.rank == 0:
        raise torch.distributed.DistNetworkError("the link is down")
    train(replica, 20)


def all_die(replica: Any, marker: str) -> None:
    """All replicas die at one step."""

    def tweak(_replica: Any, session: Any) -> None:
        original = session._join

        def join() -> bool:
            if session.step_number == 5 and not replica.is_restart:
                while not os.path.exists(marker):
                    if replica.rank == 0:
                        open(marker, "w").close()
                    time.sleep(0.001)
                die()
            return original()

        session._join = join

    train(replica, 20, tweak=tweak)


def wait_for(log: str, kind: str, count: int) -> None:
    """Return once the present run has so many events of a kind."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        with open(log) as lines:
            kinds = [json.loads(line)["kind"] for line in lines if line.endswith("\n")]
        run = kinds[len(kinds) - kinds[::-1].index("run_started") :]
        if run.count(kind) >= count:
            return
        time.sleep(0.02)
    raise TimeoutError(f"no {count} times {kind} in {log}")


def listeners(pid: int | str = "self") -> set[str]:
    """The addresses, in hexadecimal, at which a process accepts TCP connections."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        with contextlib.suppress(OSError):
            inodes.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    found = set()
    for table in ("tcp", "tcp6"):
        with open(f"/proc/self/net/{table}") as lines:
            for columns in map(str.split, list(lines)[1:]):
                if columns[3] == "0A" and f"socket:[{columns[9]}]" in inodes:
                    found.add(columns[1].partition(":")[0])
    return found


def listen(replica: Any, log: str) -> list[str]:
    """Where this replica, and the Lighthouse, accept connections while they train."""
    model = make_model(0)
    session = replica.ddp(model, torch.optim.SGD(model.parameters(), 0.1))
    found: set[str] = set()
    for step in session.steps(3):
        with open(log) as lines:
            events = [json.loads(line) for line in lines if "lighthouse_up" in line]
        found |= listeners() | listeners(events[-1]["pid"])
        x, y = batch(step.batch)
        session.step((session.model(x) - y).pow(2).mean())
    return sorted(found)


def late(replica: Any, steps: int, log: str) -> Any:
    """Replica 1 dies after its last commit; its restart takes too long to be let in."""

    def tweak(_replica: Any, session: Any) -> None:
        original = session._part_in_peace

        def part_in_peace() -> bool:
            if replica.rank == 1:
                die()
            return original()

        session._part_in_peace = part_in_peace

    if replica.is_restart:
        wait_for(log, "replica_finished", replica.replicas - 1)
        return train(replica, steps)
    return train(replica, steps, tweak=tweak)


def in_group(replica: Any, steps: int) -> dict[str, Any]:
    """A replica of several processes; the second process of replica 0 dies once."""
    model = make_model(replica.assignment.incarnation)
    session = replica.ddp(model, torch.optim.AdamW(model.parameters(), 1e-2))
    batches = []
    for step in session.steps(steps):
        if (replica.rank, replica.group_rank, step.number) == (0, 1, 6) and not replica.is_restart:
            die()
        batches.append(step.batch)
        x, y = batch(step.batch)
        session.step((session.model(x) - y).pow(2).mean())
    total = torch.tensor([fingerprint(model)])
    replica.average_in_group(total)
    return {"fingerprint": fingerprint(model), "mean": float(total), "batches": batches}

"""Actors in five small steps. Run it: ``python examples/actors.py``.

It stays on this machine. Submitted as a job, ``sm.this_job().hosts`` in place of ``sm.this_host()``
spreads the same meshes over the job's nodes.
"""

from __future__ import annotations

import asyncio

import slurmmesh as sm

# -- 1. Calls --------------------------------------------------------------------------------------


class Counter(sm.Actor):
    """State in a process of its own, changed by one message at a time."""

    def __init__(self, start: int) -> None:
        self.value = start

    @sm.endpoint
    def add(self, amount: int) -> int:
        self.value += amount
        return self.value


def count(procs: sm.ProcMesh) -> None:
    """One actor in each process. What is sent goes to all of them, or to a slice."""
    counters = procs.spawn("counter", Counter, start=10)
    counters.add.broadcast(1)  # no answer; later messages come after it
    counters.slice(gpus=slice(2, 4)).add.broadcast(5)
    values = counters.add.call(0).get()
    print(f"1. counters: {values.values()}, that of gpu 3: {values.item(gpus=3)}")


# -- 2. Actors that call each other ----------------------------------------------------------------


class Player(sm.Actor):
    """Plays with the player of its rank in another mesh."""

    def __init__(self, name: str) -> None:
        self.name = name

    @sm.endpoint
    async def meet(self, others: sm.ActorMesh) -> None:
        self.other = others.slice(**sm.current_rank())

    @sm.endpoint
    async def hit(self, ball: list[str], end: sm.Port[list[str]]) -> None:
        ball = [*ball, self.name]
        if len(ball) == 4:
            end.send(ball)
        else:
            self.other.hit.broadcast(ball, end)


async def play(procs: sm.ProcMesh) -> None:
    """Meshes and ports are values: they can be sent. Futures can be awaited."""
    pings, pongs = procs.spawn("ping", Player, "ping"), procs.spawn("pong", Player, "pong")
    await asyncio.gather(pings.meet.call(pongs), pongs.meet.call(pings))
    end, balls = sm.Channel.open()
    pings.slice(gpus=1).hit.broadcast([], end)
    print(f"2. ball: {await balls.recv()}")


# -- 3. A mesh given to another --------------------------------------------------------------------


class Loader(sm.Actor):
    """Hands out batches, the same one never twice."""

    def __init__(self) -> None:
        self.batches = iter(range(10))

    @sm.endpoint
    def next(self) -> int:
        return next(self.batches)


class Trainer(sm.Actor):
    """Takes its data from the loader of its own rank, wherever that runs."""

    def __init__(self, loaders: sm.ActorMesh) -> None:
        self.loader = loaders.slice(**sm.context().actor_instance.rank)

    @sm.endpoint
    def train(self, steps: int) -> int:
        return sum(self.loader.next.call_one().get() for _ in range(steps))


def train(procs: sm.ProcMesh) -> None:
    """Who trains does not know where the loaders are: they can be moved to other hosts."""
    loaders = procs.spawn("loader", Loader)
    trainers = procs.spawn("trainer", Trainer, loaders)
    print(f"3. trained on: {trainers.train.call(4).get().values()}")


# -- 4. Answers out of order -----------------------------------------------------------------------


class Engine(sm.Actor):
    """Answers requests when there are enough of them, with the newest weights."""

    def __init__(self) -> None:
        self.weights = 0
        self.requests: list[tuple[sm.Port[str], str]] = []

    @sm.endpoint
    def update(self, weights: int) -> None:
        self.weights = weights

    @sm.endpoint(explicit_response_port=True)
    def infer(self, port: sm.Port[str], text: str) -> None:
        self.requests.append((port, text))
        if len(self.requests) == 2:
            for port, text in self.requests:
                port.send(f"{text} by weights {self.weights}")


def infer(procs: sm.ProcMesh) -> None:
    """An endpoint with a response port answers when it likes, not in the order of its calls."""
    engine = procs.slice(gpus=0).spawn("engine", Engine)
    first = engine.infer.call_one("first")
    engine.update.broadcast(1)
    second = engine.infer.call_one("second")
    print(f"4. inferred: {first.get()}, {second.get()}")


# -- 5. When something fails -----------------------------------------------------------------------


class Reader(sm.Actor):
    """Fails."""

    @sm.endpoint
    def read(self, name: str) -> str:
        raise FileNotFoundError(name)


class Owner(sm.Actor):
    """Owns a reader, and is told when it fails."""

    def __init__(self, failures: sm.Port[str]) -> None:
        self.failures = failures
        self.reader = sm.this_host().spawn_procs(name="child").spawn("reader", Reader)

    @sm.endpoint
    def start(self) -> None:
        self.reader.read.broadcast("a.txt")  # nobody waits for an answer, or for the error

    def __supervise__(self, failure: sm.MeshFailure) -> bool:
        self.failures.send(failure.mesh_name)
        return True  # dealt with; else this actor would fail as well, and its owner be told


def supervise(procs: sm.ProcMesh) -> None:
    """An error goes to the caller. If nobody waits for an answer the owner of the actor is told."""
    reader = procs.slice(gpus=0).spawn("reader", Reader)
    try:
        reader.read.call_one("b.txt").get()
    except sm.ActorError as error:
        print(f"5. the caller got: {error.exception!r}")
    port, failures = sm.Channel.open()
    owner = procs.slice(gpus=0).spawn("owner", Owner, port)
    owner.start.broadcast()
    print(f"   the owner was told of: {failures.recv().get(timeout=60)!r}")


def main() -> None:
    procs = sm.this_host().spawn_procs({"gpus": 4}, name="example")
    count(procs)
    asyncio.run(play(procs))
    train(procs)
    infer(procs)
    supervise(procs)
    procs.stop().get()


if __name__ == "__main__":
    main()

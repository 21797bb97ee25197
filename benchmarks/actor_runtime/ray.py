"""Ray on this machine alone, with as little beside its actors as it can be started with."""

from __future__ import annotations

import os
from typing import Any

import ray

from benchmarks.actor_runtime.tensors import filled, read

_STORE = 2 << 30


class Target:
    """What is called."""

    def nothing(self) -> None:
        """Answer."""

    def pid(self) -> int:
        """Of the proc."""
        return os.getpid()

    def load(self) -> None:
        """Import torch."""
        import torch  # noqa: F401

    def take(self, tensor: Any) -> None:
        """Read it."""
        read(tensor)

    def keep(self, elements: int) -> None:
        """Make a tensor."""
        self.kept = filled(elements)

    def give(self) -> Any:
        """The tensor made before."""
        return self.kept

    def fail(self) -> None:
        """Raise."""
        raise ValueError("as it should")


_RemoteTarget: Any = ray.remote(num_cpus=0)(Target)


class Session:
    """See ``peers.Session``."""

    def __init__(self, transport: str) -> None:
        ray.init(
            include_dashboard=False,
            object_store_memory=_STORE,
            log_to_driver=False,
            logging_level="ERROR",
        )

    def spawn(self, procs: int, torch: bool) -> None:
        self._all = [_RemoteTarget.remote() for _ in range(procs)]
        self._one = self._all[0]
        self.call_all()
        if torch:
            ray.get([actor.load.remote() for actor in self._all])

    def pids(self) -> list[int]:
        return list(ray.get([actor.pid.remote() for actor in self._all]))

    def call_one(self) -> None:
        ray.get(self._one.nothing.remote())

    async def await_one(self) -> None:
        await self._one.nothing.remote()

    def call_all(self) -> None:
        ray.get([actor.nothing.remote() for actor in self._all])

    def burst(self, actors: int, calls: int) -> None:
        ray.get([self._all[i % actors].nothing.remote() for i in range(calls)])

    def cast(self, messages: int) -> None:
        for _ in range(messages):
            self._one.nothing.remote()
        self.call_one()

    def send(self, tensor: Any) -> None:
        ray.get(self._one.take.remote(tensor))

    def keep(self, elements: int) -> None:
        ray.get(self._one.keep.remote(elements))

    def fetch(self) -> Any:
        return ray.get(self._one.give.remote())

    def fail(self) -> Exception | None:
        try:
            ray.get(self._one.fail.remote())
        except ValueError as error:
            return error
        return None

    def stop(self) -> None:
        for actor in self._all:
            ray.kill(actor)

    def close(self) -> None:
        ray.shutdown()

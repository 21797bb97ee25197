"""Monarch (torchmonarch), as its documentation has it. Its TCP is neither encrypted nor proven."""

from __future__ import annotations

import os
from typing import Any

from monarch.actor import (
    Actor,
    ActorError,
    enable_transport,
    endpoint,
    shutdown_context,
    this_host,
)

from benchmarks.actor_runtime.tensors import filled, read


class Target(Actor):
    """What is called."""

    @endpoint
    def nothing(self) -> None:
        """Answer."""

    @endpoint
    def pid(self) -> int:
        """Of the proc."""
        return os.getpid()

    @endpoint
    def load(self) -> None:
        """Import torch."""
        import torch  # noqa: F401

    @endpoint
    def take(self, tensor: Any) -> None:
        """Read it."""
        read(tensor)

    @endpoint
    def keep(self, elements: int) -> None:
        """Make a tensor."""
        self.kept = filled(elements)

    @endpoint
    def give(self) -> Any:
        """The tensor made before."""
        return self.kept

    @endpoint
    def fail(self) -> None:
        """Raise."""
        raise ValueError("as it should")


class Session:
    """See ``peers.Session``."""

    def __init__(self, transport: str) -> None:
        if transport == "tcp":
            enable_transport("tcp://127.0.0.1:0")
        self._host = this_host()

    def spawn(self, procs: int, torch: bool) -> None:
        self._procs = self._host.spawn_procs({"gpus": procs})
        self._all = self._procs.spawn("target", Target)
        self._ones = [self._all.slice(gpus=rank) for rank in range(procs)]
        self._one = self._ones[0]
        self.call_all()
        if torch:
            self._all.load.call().get()

    def pids(self) -> list[int]:
        return [pid for _, pid in self._all.pid.call().get()]

    def call_one(self) -> None:
        self._one.nothing.call_one().get()

    async def await_one(self) -> None:
        await self._one.nothing.call_one()

    def call_all(self) -> None:
        self._all.nothing.call().get()

    def burst(self, actors: int, calls: int) -> None:
        ones = self._ones[:actors]
        for future in [ones[i % actors].nothing.call_one() for i in range(calls)]:
            future.get()

    def cast(self, messages: int) -> None:
        for _ in range(messages):
            self._one.nothing.broadcast()
        self.call_one()

    def send(self, tensor: Any) -> None:
        self._one.take.call_one(tensor).get()

    def keep(self, elements: int) -> None:
        self._one.keep.call_one(elements).get()

    def fetch(self) -> Any:
        return self._one.give.call_one().get()

    def fail(self) -> Exception | None:
        try:
            self._one.fail.call_one().get()
        except ActorError as error:
            return error
        return None

    def stop(self) -> None:
        self._procs.stop().get()

    def close(self) -> None:
        """As it does itself at the end of the program, but there it waits for a second at most."""
        shutdown_context().get()

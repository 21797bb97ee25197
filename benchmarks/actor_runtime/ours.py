"""Slurmmesh, by what its users call; only a host over TCP has no public name outside of Slurm."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.actor_runtime.tensors import filled, read
from slurmmesh import Actor, ActorError, HostMesh, endpoint, local_hosts


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
        self._dialled = DialledHost() if transport == "tcp" else None
        self._hosts = self._dialled.hosts if self._dialled else local_hosts(1)

    def spawn(self, procs: int, torch: bool) -> None:
        preload = ["torch"] if torch else []
        self._procs = self._hosts.spawn_procs({"gpus": procs}, name="bench", preload=preload)
        self._all = self._procs.spawn("target", Target)
        self._ones = [self._all.slice(hosts=0, gpus=rank) for rank in range(procs)]
        self._one = self._ones[0]
        self.call_all()

    def pids(self) -> list[int]:
        return list(self._all.pid.call().get().values())

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
        self._hosts.stop()
        if self._dialled is not None:
            self._dialled.close()


_DIAL = """\
import sys
from slurmmesh.hosts.remote_agent import DialSpec, dial
sys.exit(dial(DialSpec((("127.0.0.1", int(sys.argv[1])),), sys.argv[2], "host-0")))
"""


class DialledHost:
    """A host of this machine that dials its controller over TCP, as those of an allocation do."""

    def __init__(self) -> None:
        from slurmmesh.hosts.controller import Controller
        from slurmmesh.hosts.local import LocalAgent
        from slurmmesh.shape import Extent, Region

        self._folder = tempfile.TemporaryDirectory(prefix="slurmmesh-benchmark-")
        controller = Controller("benchmark", None)
        record = controller.roster.add_host("dialled")
        identity = Path(self._folder.name, "identity")
        controller.roster.authority.issue(record.identity).write(identity)
        port = controller.roster.listen("127.0.0.1")
        command = [sys.executable, "-c", _DIAL, str(port), str(identity)]
        self._agent = subprocess.Popen(command, stdin=subprocess.DEVNULL)
        record.launched = LocalAgent(self._agent)
        controller.roster.wait_ready([record], 60)
        region = Region.from_ranks(Extent.of({"hosts": 1}), [record.index])
        self.hosts = HostMesh(controller.runtime, region)

    def close(self) -> None:
        """Await its end and remove its certificates."""
        self._agent.wait()
        self._folder.cleanup()

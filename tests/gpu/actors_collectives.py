"""A program of a user: actors all-reduce, one of their procs dies, and they go on without harm.

Prints a line of JSON for each thing that it finds out.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import slurmmesh as sm
from slurmmesh import gpu
from slurmmesh.errors import CollectiveError, SupervisionError
from slurmmesh.gpu import Communicator, CommunicatorId, DeviceMemory, Peer, this_peer

SIZE = 4


class Worker(sm.Actor):
    @sm.endpoint
    def peer(self) -> Peer:
        return this_peer(sm.current_rank()["gpus"])

    @sm.endpoint
    def join(self, id: CommunicatorId, peers: list[Peer]) -> int:
        rank = sm.current_rank()["gpus"]
        self.memory = DeviceMemory.reserve(1)
        self.comm = Communicator(id, rank, SIZE, peers=peers, timeout=60)
        return os.getpid()

    @sm.endpoint
    def all_reduce(self) -> dict[str, Any]:
        self.memory.fill(1)
        try:
            self.comm.all_reduce(self.memory)
        except CollectiveError as error:
            return {"peers": error.peers, "world": error.world, "text": str(error)}
        return {"sum": self.memory.read(1)[0]}

    @sm.endpoint
    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def tell(what: Any) -> None:
    print(json.dumps(what), flush=True)


def together(workers: Any, name: str) -> list[int]:
    id = CommunicatorId.new(name)
    peers = workers.peer.call().get(60).values()
    return workers.join.call(id, peers).get(60).values()


def main() -> None:
    sm.unhandled_fault_hook = lambda failure: print(failure.report(), file=sys.stderr)
    tell(gpu.platform().describe())
    procs = sm.this_host().spawn_procs({"gpus": SIZE}, name="first")
    workers = procs.spawn("workers", Worker)
    pids = together(workers, "first")
    tell(workers.all_reduce.call().get(60).values())
    waiting = [workers.slice(gpus=rank).all_reduce.call_one() for rank in range(SIZE - 1)]
    workers.slice(gpus=SIZE - 1).die.broadcast()
    tell([pids[-1], [future.get(60) for future in waiting]])
    try:
        procs.stop()
    except SupervisionError as error:
        print(error, file=sys.stderr)
    procs = sm.this_host().spawn_procs({"gpus": SIZE}, name="second")
    workers = procs.spawn("workers", Worker)
    together(workers, "second")
    tell(workers.all_reduce.call().get(60).values())
    procs.stop()

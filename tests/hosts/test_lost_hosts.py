"""What is sent to a mesh that has lost a host: real hosts, a real kill."""

from __future__ import annotations

import os
import queue
import signal

import pytest

import slurmmesh as sm
from slurmmesh.actors import ProcEvent
from slurmmesh.errors import HostLost, ProcDied


class Worker(sm.Actor):
    @sm.endpoint
    def host_pid(self):
        return os.getppid()

    @sm.endpoint
    def nothing(self):
        pass


@pytest.mark.slow
def test_calls_and_casts_to_lost_ranks_are_not_kept_and_others_answer(tmp_path, wait_until):
    hosts = sm.local_hosts(2, tmp_path)
    try:
        procs = hosts.spawn_procs({"gpus": 2}, supervise=sm.Supervision("one_for_one"))
        events: queue.Queue[ProcEvent] = queue.Queue()
        procs.on_event(events.put)
        workers = procs.spawn("workers", Worker)
        # A call to one rank makes its place known: it waits for the news of what has arrived.
        pids = [
            workers.slice(**point).host_pid.call_one().get(60) for point in workers.extent.points()
        ]
        os.kill(pids[-1], signal.SIGKILL)
        while events.get(timeout=20).kind != "given_up":
            pass
        for _ in range(3):
            workers.nothing.broadcast()
            with pytest.raises((HostLost, ProcDied)):
                workers.nothing.call().get(20)
            errors = [answer.exception(20) for answer in workers.nothing.stream()]
            assert sum(error is None for error in errors) == 2
        book = procs._runtime._caller.book
        wait_until(lambda: not book._open)
    finally:
        hosts.stop()

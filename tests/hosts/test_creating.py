"""Large arguments of constructors: copied once, and not while others wait for the books."""

from __future__ import annotations

import os
import queue
import signal
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.actors import ProcEvent
from slurmmesh.wire.shm import Segment

SIZE = 4 << 20


class Holder(sm.Actor):
    def __init__(self, payload: bytearray) -> None:
        self.payload = payload

    @sm.endpoint
    def held(self) -> tuple[int, int, int]:
        return os.getpid(), len(self.payload), sum(self.payload[:: SIZE // 4])


@pytest.mark.slow
def test_large_arguments_are_copied_once_and_without_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    hosts = sm.local_hosts(2, tmp_path)
    written: list[bool] = []
    try:
        procs = hosts.spawn_procs({"gpus": 2}, supervise=sm.Supervision("one_for_one"))
        events: queue.Queue[ProcEvent] = queue.Queue()
        procs.on_event(events.put)
        lock, write = procs._runtime._lock, Segment.write

        def noted(segment: Segment, offset: int, data: memoryview) -> None:
            written.append(lock._is_owned())
            write(segment, offset, data)

        monkeypatch.setattr(Segment, "write", noted)
        payload = bytearray(b"\1") * SIZE
        holders = procs.spawn("holders", Holder, payload)
        payload[:] = bytes(SIZE)  # what was spawned keeps what it was
        held = holders.held.call().get(60).values()
        assert [each[1:] for each in held] == [(SIZE, 4)] * 4
        os.kill(held[3][0], signal.SIGKILL)
        while events.get(timeout=60).kind != "restarted":
            pass
        assert holders.slice(hosts=1, gpus=1).held.call_one().get(60)[1:] == (SIZE, 4)
        assert written == [False]
    finally:
        hosts.stop()

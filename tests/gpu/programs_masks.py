"""What the test of masks runs: procs of a host tell which devices they see."""

from __future__ import annotations

import slurmmesh as sm
from slurmmesh import gpu


class Seer(sm.Actor):
    @sm.endpoint
    def devices(self) -> list[tuple[int, str]]:
        return [(each.index, each.uuid) for each in gpu.devices()]


def shares(procs: int, each: int) -> tuple[list[str], list[list[tuple[int, str]]]]:
    """The devices that this process sees, and those that procs of this host see."""
    hosts = sm.local_hosts(1)
    mesh = hosts.spawn_procs({"gpus": procs}, gpus_per_proc=each)
    seen = list(mesh.spawn("seer", Seer).devices.call().get(60).values())
    hosts.stop()
    return [each.uuid for each in gpu.devices()], seen

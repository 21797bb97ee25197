"""Device memory mapped and unmapped, exported and imported, again and again: what grows?

    LD_LIBRARY_PATH=... python -m tests.gpu.cycles [CYCLES]

Prints what is alive after each twentieth of the cycles (1,000,000), in JSON.
With an emulator this is a test of the bridge and of the Python above it, and of nothing else.
"""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any

from slurmmesh.gpu import DeviceMemory, ExportedMemory, platform
from tests.gpu.alive import alive, maps, resident_bytes

UNIT = 2 << 20
_WITH_ALL = 50


def plain_cycle() -> None:
    """Reserve and map, export, import and map, unmap and free both."""
    with DeviceMemory.reserve(UNIT) as memory, memory.export() as exported:
        DeviceMemory.import_(exported).free()


def full_cycle(number: int, ours: socket.socket, theirs: socket.socket) -> None:
    """The same with all else: growth, a tensor that nobody takes, a socket, a dma-buf."""
    with DeviceMemory.reserve(UNIT, capacity=2 * UNIT) as memory:
        memory.write(number.to_bytes(8, "little"), UNIT - 8)
        memory.grow(2 * UNIT)
        unused = memory.__dlpack__()
        with memory.export() as exported:
            exported.send(ours)
        with ExportedMemory.receive(theirs) as received:
            same = DeviceMemory.import_(received)
        assert int.from_bytes(same.read(8, UNIT - 8), "little") == number
        with memory.dmabuf(0, UNIT):
            same.free()
        del unused


def run(cycles: int) -> Iterator[dict[str, Any]]:
    """What is alive after each twentieth of the cycles, one in 50 of them a full one."""
    began = time.perf_counter()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for number in range(cycles):
            if number % _WITH_ALL:
                plain_cycle()
            else:
                full_cycle(number, ours, theirs)
            if (number + 1) % (cycles // 20) == 0:
                now = {**alive(), "maps": maps(), "resident_bytes": resident_bytes()}
                yield {
                    "cycles": number + 1,
                    "seconds": round(time.perf_counter() - began, 1),
                    **now,
                }


if __name__ == "__main__":
    print(platform().describe())
    for told in run(int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000):
        print(json.dumps(told), flush=True)

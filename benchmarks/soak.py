"""Calls for minutes: 64 actors answer under load; memory must stay flat, no answer lost or doubled.

``python -m benchmarks.soak --minutes 10`` prints what it saw each tenth of the time and ends with 1
if an answer was lost, doubled or wrong. Each actor counts its messages: its answer must be the
number of those sent to it so far, so a message that was lost or came twice, or too early, shows
at once.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import sys
import time

import slurmmesh as sm

_OUTSTANDING = 500


class Counter(sm.Actor):
    """Counts what it is sent."""

    def __init__(self) -> None:
        self.count = 0

    @sm.endpoint
    def add(self, payload: object) -> int:
        """How many messages came, this one included."""
        self.count += 1
        return self.count

    @sm.endpoint
    def pid(self) -> int:
        """Of its process."""
        return os.getpid()


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--actors", type=int, default=64)
    options = parser.parse_args()
    hosts = sm.local_hosts(2)
    procs = hosts.spawn_procs({"gpus": options.actors // 2}, name="soak")
    mesh = procs.spawn("counter", Counter)
    pids = [os.getpid(), *mesh.pid.call().get(120).values()]
    pids += _parents(pids[1:])
    ranks = [
        mesh.slice(hosts=host, gpus=gpu) for host in range(2) for gpu in range(options.actors // 2)
    ]
    sent = [0] * len(ranks)
    draw = random.Random(0)
    open_calls: collections.deque[tuple[int, int, sm.Future[int]]] = collections.deque()
    wrong = total = 0
    begin = time.monotonic()
    shown = -1
    while (spent := time.monotonic() - begin) < options.minutes * 60:
        kind = draw.random()
        if kind < 0.9:
            rank = draw.randrange(len(ranks))
            sent[rank] += 1
            payload = kind if kind < 0.8 else b"x" * draw.choice([2000, 70_000, 300_000])
            open_calls.append((rank, sent[rank], ranks[rank].add.call_one(payload)))
        elif kind < 0.9005:
            sent = [count + 1 for count in sent]
            answers = list(mesh.add.call(kind).get(120).values())
            wrong += sum(mine != theirs for mine, theirs in zip(sent, answers, strict=True))
            total += len(ranks)
        else:
            rank = draw.randrange(len(ranks))
            sent[rank] += 1
            ranks[rank].add.broadcast(kind)
            total += 1
        while len(open_calls) > _OUTSTANDING:
            total += 1
            wrong += not _is_right(*open_calls.popleft())
        if int(spent / (options.minutes * 6)) != shown:
            shown = int(spent / (options.minutes * 6))
            print(
                f"{spent:6.0f} s  {total:>9} messages  {wrong} wrong  {_memory(pids)}", flush=True
            )
    for each in open_calls:
        wrong += not _is_right(*each)
    counts = [count - 1 for count in mesh.add.call(None).get(120).values()]
    wrong += counts != sent
    print(f"{total} messages to {len(ranks)} actors, {wrong} wrong; {_memory(pids)}")
    hosts.stop()
    return 1 if wrong else 0


def _is_right(_rank: int, number: int, future: sm.Future[int]) -> bool:
    return future.get(120) == number


def _memory(pids: list[int]) -> str:
    resident = [_resident(pid) for pid in pids]
    actors = resident[1:-2]
    return (
        f"resident MiB: program {resident[0]:.0f}, agents {resident[-2]:.0f} {resident[-1]:.0f}, "
        f"actors {min(actors):.0f} to {max(actors):.0f}"
    )


def _resident(pid: int) -> float:
    return int(_read(f"/proc/{pid}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def _parents(pids: list[int]) -> list[int]:
    """The host agents of these procs."""
    agents = [int(_read(f"/proc/{pid}/stat").rpartition(")")[2].split()[1]) for pid in pids]
    return list(dict.fromkeys(agents))


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


if __name__ == "__main__":
    sys.exit(main())

"""A call to every rank of many hosts: down the tree, and to each host by itself. See README.md.

Hosts are emulated: the real routes and relays of all hosts run in this process, in virtual time
in which they work side by side. The CPU time that each step takes is measured; each frame is
encoded, goes through a socket of this machine and is decoded. Networks and TLS are not in it.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import socket
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import results
from slurmmesh.hosts.relay import REQUESTS, Relay
from slurmmesh.hosts.routes import Routes
from slurmmesh.wire.frames import Frame, FrameDecoder, Kind
from slurmmesh.wire.gather import unmerge

TOP = -1
RANKS_PER_HOST = 8
SIZES = (64, 1024, 4096)


class Wire:
    """A socket pair of this machine, through which every frame goes."""

    def __init__(self) -> None:
        self._send, self._receive = socket.socketpair()
        for end in (self._send, self._receive):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)

    def send(self, frame: Frame) -> bytes:
        """What the sender does; returns what arrives."""
        self._send.sendmsg(frame.parts())
        return self._receive.recv(1 << 22)

    def close(self) -> None:
        """Close both ends."""
        self._send.close()
        self._receive.close()


class World:
    """A controller and its hosts. Times are virtual: those of a step are what it took here."""

    def __init__(self, wire: Wire, hosts: int, by_tree: bool) -> None:
        self._wire = wire
        self._hosts = hosts
        self._by_tree = by_tree
        self._arriving: list[tuple[float, int, int, int, bytes]] = []
        self._order = itertools.count()
        self._free_at: dict[int, float] = {}
        self._at = TOP
        self._started = self._began = 0.0
        self._top_busy = 0.0
        self._calls = itertools.count(1)
        self._answered = 0
        self.messages = 0
        self._relays = [self._relay(host) for host in range(hosts)]
        self._routes = Routes(
            self._locate,
            lambda host: _Way(self, host),
            lambda frame, _rank: frame,
            self._take,
            lambda _delay, _callback: None,
            lambda: False,
        )

    def call(self) -> tuple[float, float, int]:
        """Call every rank; seconds until all have answered, seconds that the controller worked
        for it, and the number of frames that it sent and took."""
        self._free_at.clear()
        self._answered = self.messages = 0
        self._top_busy = 0.0
        ranks = tuple(range(self._hosts * RANKS_PER_HOST))
        frame = Frame(Kind.CALL, b"x" * 100, (), next(self._calls), 1, 1, ranks)
        self._step(TOP, 0.0, lambda: self._send(frame))
        while self._arriving:
            at, _, source, target, data = heapq.heappop(self._arriving)
            self._step(target, at, lambda: self._arrive(source, target, data))  # noqa: B023
        if self._answered != len(ranks):
            raise RuntimeError(f"{self._answered} of {len(ranks)} ranks have answered")
        for relay in self._relays:
            relay.closed(Frame(Kind.CLOSED, frame.call.to_bytes(8, "little")))
        return self._free_at[TOP], self._top_busy, self.messages

    def _send(self, frame: Frame) -> None:
        if self._by_tree:
            self._routes.send(frame)
            return
        for host, ranks in self._locate(1, frame.ranks).items():
            self.post(host, replace(frame, ranks=tuple(ranks)))

    def post(self, target: int, frame: Frame) -> None:
        """A frame leaves whoever is at work."""
        data = self._wire.send(frame)
        self.messages += self._at == TOP
        now = self._began + time.thread_time() - self._started
        heapq.heappush(self._arriving, (now, next(self._order), self._at, target, data))

    def deliver(self, frame: Frame, ranks: Sequence[int], sent: Callable[[list[int]], Any]) -> None:
        """A host writes to its procs; each answers in no time."""
        for rank in ranks:
            self._wire.send(frame)
            answer = Frame(Kind.RESULT, b"y" * 20, (), frame.call, 1, 1, (rank,))
            data = b"".join(answer.parts())
            now = self._began + time.thread_time() - self._started
            entry = (now, next(self._order), self._at, self._at, data)
            heapq.heappush(self._arriving, entry)
        sent(list(ranks))

    def _step(self, node: int, at: float, work: Callable[[], Any]) -> None:
        self._at = node
        self._began = max(at, self._free_at.get(node, 0.0))
        self._started = time.thread_time()
        work()
        took = time.thread_time() - self._started
        self._free_at[node] = self._began + took
        self._top_busy += took if node == TOP else 0.0

    def _arrive(self, source: int, target: int, data: bytes) -> None:
        decoder = FrameDecoder()
        decoder.incoming.append((data, [], 0, None))
        for frame in decoder.feed():
            if target == TOP:
                self.messages += 1
                if self._by_tree:
                    self._routes.take(source, frame)
                else:
                    self._take(frame)
            elif frame.kind in REQUESTS:
                self._relays[target].request(_Way(self, source), frame, keep=source != TOP)
            else:
                self._relays[target].reply(frame, source)

    def _take(self, frame: Frame) -> None:
        if frame.kind is Kind.MERGED:
            self._answered += sum(1 for _ in unmerge(frame))
        elif frame.kind is Kind.RESULT:
            self._answered += len(frame.ranks)

    def _relay(self, host: int) -> Relay:
        return Relay(
            host,
            _Own(self),
            self._locate,
            lambda other: _Way(self, other),
            lambda _delay, _callback: None,
        )

    def _locate(self, _mesh: int, ranks: Sequence[int]) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for rank in ranks:
            found.setdefault(rank // RANKS_PER_HOST, []).append(rank)
        return found


class _Way:
    def __init__(self, world: World, target: int) -> None:
        self._world = world
        self._target = target

    def post(self, frame: Frame) -> None:
        self._world.post(self._target, frame)


class _Own:
    def __init__(self, world: World) -> None:
        self._world = world

    def deliver(
        self, frame: Frame, ranks: Sequence[int], sent: Callable[[list[int]], Any]
    ) -> list[int]:
        self._world.deliver(frame, ranks, sent)
        return []

    def refuse(self, frame: Frame, _rank: int) -> Frame:
        return frame


def measure(sizes: Sequence[int], rounds: int) -> list[results.Row]:
    """Three rows for each number of hosts."""
    rows = []
    for hosts in sizes:
        wire = Wire()
        try:
            worlds = {name: World(wire, hosts, name == "tree") for name in ("tree", "flat")}
            ways = {name: world.call for name, world in worlds.items()}
            for way in ways.values():
                way()  # not counted: what is compiled and cached at first
            found = results.in_turns(ways, rounds)
        finally:
            wire.close()
        what = f"{hosts} hosts x {RANKS_PER_HOST} ranks"
        for index, (name, unit, scale) in enumerate(
            [
                (f"call to {what}", "ms", 1e3),
                (f"work of the controller for it, {what}", "ms", 1e3),
                (f"frames of the controller for it, {what}", "frames", 1),
            ]
        ):
            tree, flat = ([scale * sample[index] for sample in found[way]] for way in ways)
            rows.append(results.Row(name, unit, "lower", tree, {"flat": flat}))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.casting", description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--hosts", type=int, nargs="+", default=list(SIZES))
    options = parser.parse_args(argv)
    if options.rounds < 1 or min(options.hosts) < 1:
        parser.error("--rounds and --hosts: give 1 or more")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.json.parent}")
    rows = measure(options.hosts, options.rounds)
    print(results.table(rows))
    if options.json:
        results.write(options.json, results.machine("hosts emulated in one process"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

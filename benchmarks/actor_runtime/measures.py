"""What is measured, in this process, of one peer: ``... measures PEER MEASURE OPTIONS FILE``.

Each function drives a session of whatever peer and gives its samples by their keys; ``cases``
has their names and units.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.actor_runtime import processes, tensors
from benchmarks.actor_runtime.peers import ALL, Peer, Session

Samples = dict[str, list[float]]
_WARM = 100
_SETTLE_S = 2.0
_LATE_S = 60.0
_POLL_S = 0.0005

_opened: list[Session] = []


def _seconds(action: Callable[[], object], count: int = 1) -> list[float]:
    found = []
    for _ in range(count):
        started = time.perf_counter()
        action()
        found.append(time.perf_counter() - started)
    return found


def _warm(action: Callable[[], object], count: int) -> None:
    for _ in range(count):
        action()


def _open(load: type[Session], transport: str = "unix") -> Session:
    session = load(transport)
    _opened.append(session)
    return session


def _ready(peer: Peer, procs: int = 1, transport: str = "unix", torch: bool = False) -> Session:
    session = _open(peer.load(), transport)
    session.spawn(procs, torch)
    return session


def imports(peer: Peer, count: int) -> Samples:
    """Start Python and import what a program needs that uses actors."""

    def run() -> None:
        subprocess.run([sys.executable, "-c", peer.imports], check=True)

    _warm(run, 1)
    return {"": _seconds(run, count)}


def spawn(peer: Peer, procs: int) -> Samples:
    """From a program that has imported all to an answer of each actor, then the like again."""
    load = peer.load()
    started = time.perf_counter()
    session = _open(load)
    session.spawn(procs, False)
    first = time.perf_counter() - started
    session.stop()
    again = _seconds(lambda: session.spawn(procs, False))
    return {"first": [first], "again": again}


def stop(peer: Peer, procs: int) -> Samples:
    """Until no proc is there any more."""
    session = _ready(peer, procs)
    pids = session.pids()

    def stop_all() -> None:
        session.stop()
        deadline = time.monotonic() + _LATE_S
        while any(map(processes.runs, pids)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"procs still run {_LATE_S:g} s after the stop")
            time.sleep(_POLL_S)

    found = _seconds(stop_all)
    return {"": found}


def round_trip(peer: Peer, caller: str, transport: str, count: int) -> Samples:
    """One call after the other."""
    session = _ready(peer, transport=transport)

    async def calls(number: int) -> list[float]:
        found = []
        for _ in range(number):
            started = time.perf_counter()
            await session.await_one()
            found.append(time.perf_counter() - started)
        return found

    async def warm_and_measure() -> list[float]:
        await calls(_WARM)
        return await calls(count)

    if caller == "async":
        found = asyncio.run(warm_and_measure())
    else:
        _warm(session.call_one, _WARM)
        found = _seconds(session.call_one, count)
    return {"": found}


def pipelined(peer: Peer, actors: int, outstanding: int, count: int) -> Samples:
    """Calls a second, all sent before the first answer is looked at."""
    session = _ready(peer, actors)

    def burst() -> None:
        session.burst(actors, outstanding)

    _warm(burst, 1)
    found = _seconds(burst, count)
    return {"": [outstanding / each for each in found]}


def broadcast(peer: Peer, messages: int, count: int) -> Samples:
    """Messages a second that nobody answers; a call at the end tells that all have been taken."""
    session = _ready(peer)

    def cast() -> None:
        session.cast(messages)

    _warm(cast, 1)
    found = _seconds(cast, count)
    return {"": [messages / each for each in found]}


def call_all(peer: Peer, procs: int, count: int) -> Samples:
    """One call to all actors after the other."""
    session = _ready(peer, procs)
    _warm(session.call_all, 10)
    found = _seconds(session.call_all, count)
    return {"": found}


def tensor(peer: Peer, mib: int, transport: str, count: int) -> Samples:
    """GB/s of a tensor as an argument, and as a result; both ends are warm."""
    elements = mib << 18
    session = _ready(peer, transport=transport)
    sent = tensors.filled(elements)
    session.keep(elements)

    def send() -> None:
        session.send(sent)

    def fetch() -> None:
        tensors.read(session.fetch())

    found = {}
    for key, action in {"argument": send, "result": fetch}.items():
        _warm(action, 2)
        found[key] = [(mib << 20) / each / 1e9 for each in _seconds(action, count)]
    return found


def error(peer: Peer, count: int) -> Samples:
    """Call what raises, until it is raised here."""
    session = _ready(peer)

    def fail() -> None:
        if session.fail() is None:
            raise RuntimeError("the error did not come")

    _warm(fail, 10)
    found = _seconds(fail, count)
    return {"": found}


def idle(peer: Peer, procs: int, torch: bool, seconds: float) -> Samples:
    """Memory and processor time of procs that have nothing to do, and of all of the program."""
    session = _ready(peer, procs, torch=torch)
    pids = session.pids()
    time.sleep(_SETTLE_S)
    everything = processes.program()
    # This process is the first of them: what it takes to look is left out.
    before = processes.cpu_s(pids), processes.cpu_s(everything[::-1])
    time.sleep(seconds)
    all_after = processes.cpu_s(everything)
    after = processes.cpu_s(pids), all_after
    found = {
        "proc": [processes.pss_mib(pids) / procs],
        "program": [processes.pss_mib(everything)],
        "cpu": [(after[0] - before[0]) / seconds],
        "program cpu": [(after[1] - before[1]) / seconds],
    }
    return found


def main() -> None:
    """Measure and write the samples as JSON; only then end what has been measured."""
    name, measure, options, path = sys.argv[1:]
    found = globals()[measure](ALL[name], **json.loads(options))
    Path(path).write_text(json.dumps(found), encoding="utf-8")
    for session in _opened:
        session.close()


if __name__ == "__main__":
    main()

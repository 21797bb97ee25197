"""What is measured of whom, and the names and units it goes by in the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.actor_runtime.peers import Peer

_TCP = "TCP (TLS; monarch: plain)"


@dataclass(frozen=True)
class Metric:
    """How samples are told: they are multiplied by ``scale`` to be in ``unit``."""

    name: str
    unit: str
    better: Literal["lower", "higher"] = "lower"
    scale: float = 1.0


@dataclass(frozen=True)
class Case:
    """One measurement, in a fresh process.

    Attributes:
        measure: a function of ``measures``.
        options: its arguments.
        metrics: of each key of its samples.
        without: who has nothing of the kind.
    """

    group: str
    measure: str
    options: Mapping[str, Any]
    metrics: Mapping[str, Metric]
    without: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """For people to follow what goes on."""
        told = ", ".join(f"{key} {value}" for key, value in self.options.items())
        return f"{self.group}: {told}"

    def fits(self, peer: Peer) -> bool:
        """Whether the peer has it."""
        transport = self.options.get("transport", "unix")
        return peer.name not in self.without and transport in peer.transports


def cases(quick: bool) -> list[Case]:
    """All of them; ``quick``: with a tenth of the samples, and no tensor of 512 MiB."""

    def count(number: int) -> int:
        return max(1, number // 10) if quick else number

    return [
        Case(
            "import",
            "imports",
            {"count": count(5)},
            {"": Metric("import, with the start of Python", "ms", scale=1e3)},
        ),
        *_spawns(),
        *_round_trips(count(2000)),
        *_rates(count(5)),
        *(
            Case(
                "call",
                "call_all",
                {"procs": procs, "count": count(samples)},
                {"": Metric(f"call on {procs} actors", "ms", scale=1e3)},
            )
            for procs, samples in {8: 200, 32: 100, 64: 60}.items()
        ),
        *_tensors({1: 3, 64: 1} if quick else {1: 30, 64: 8, 512: 3}),
        Case(
            "error",
            "error",
            {"count": count(300)},
            {"": Metric("error round trip: an endpoint raises", "us", scale=1e6)},
        ),
        *_idle(0.5 if quick else 5.0),
        *(
            Case(
                "stop",
                "stop",
                {"procs": procs},
                {"": Metric(f"stop of {procs} procs, until none is there", "ms", scale=1e3)},
            )
            for procs in (8, 32)
        ),
    ]


def _spawns() -> Iterator[Case]:
    for procs in (1, 8, 32):
        what = f"{procs} procs + actor + first call" if procs > 1 else "1 proc + actor + first call"
        yield Case(
            "spawn",
            "spawn",
            {"procs": procs},
            {
                "first": Metric(f"spawn {what}, first of a program", "ms", scale=1e3),
                "again": Metric(f"spawn {what}, again", "ms", scale=1e3),
            },
        )


def _round_trips(count: int) -> Iterator[Case]:
    for transport, words in {"unix": "unix", "tcp": _TCP}.items():
        for caller in ("sync", "async"):
            name = f"call_one round trip, {caller} caller, {words}"
            yield Case(
                "round_trip",
                "round_trip",
                {"caller": caller, "transport": transport, "count": count},
                {"": Metric(name, "us", scale=1e6)},
                # asyncio cannot take over a socket that has TLS already
                without=("floor",) if (caller, transport) == ("async", "tcp") else (),
            )


def _rates(count: int) -> Iterator[Case]:
    for actors in (1, 8):
        who = f"{actors} actors" if actors > 1 else "1 actor"
        yield Case(
            "pipelined",
            "pipelined",
            {"actors": actors, "outstanding": 2000, "count": count},
            {"": Metric(f"pipelined calls to {who}, 2000 outstanding", "1/s", "higher")},
        )
    yield Case(
        "broadcast",
        "broadcast",
        {"messages": 5000, "count": count},
        {"": Metric("broadcast to 1 actor, messages", "1/s", "higher")},
    )


def _tensors(counts: Mapping[int, int]) -> Iterator[Case]:
    """``counts``: how often, by the size in MiB."""
    for mib, transport in (*((mib, "unix") for mib in counts), (64, "tcp")):
        suffix = f", {_TCP}" if transport == "tcp" else ""
        yield Case(
            "tensors",
            "tensor",
            {"mib": mib, "transport": transport, "count": counts[mib]},
            {
                "argument": Metric(f"tensor argument {mib} MiB{suffix}", "GB/s", "higher"),
                "result": Metric(f"tensor result {mib} MiB{suffix}", "GB/s", "higher"),
            },
        )


def _idle(seconds: float) -> Iterator[Case]:
    for torch in (False, True):
        suffix = ", torch imported" if torch else ""
        metrics = {
            "proc": Metric(f"idle memory (PSS) of a proc, of 8{suffix}", "MiB"),
            "program": Metric(f"idle memory (PSS) of a program with 8 procs{suffix}", "MiB"),
            "cpu": Metric(f"idle CPU of 8 procs{suffix}", "ms/s", scale=1e3),
            "program cpu": Metric(f"idle CPU of a program with 8 procs{suffix}", "ms/s", scale=1e3),
        }
        options = {"procs": 8, "torch": torch, "seconds": seconds}
        yield Case("idle", "idle", options, metrics)

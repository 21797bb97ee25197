"""What all benchmarks share: turns, statistics, the table and the JSON they write (README.md)."""

from __future__ import annotations

import json
import math
import os
import platform
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """What is told of ``n`` samples."""

    median: float
    p99: float
    n: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """The 99th percentile is a sample (nearest rank): of fewer than 100, the worst above.

        Raises ValueError without samples.
        """
        if not samples:
            raise ValueError("nothing was measured")
        rank = math.ceil(0.99 * len(samples))
        return cls(statistics.median(samples), sorted(samples)[rank - 1], len(samples))


@dataclass(frozen=True)
class Row:
    """One thing that was measured, of ours and of each peer that has its like.

    Attributes:
        unit: of the samples.
        better: which way is good.
        ours, peers: the samples.
    """

    name: str
    unit: str
    better: Literal["lower", "higher"]
    ours: Sequence[float]
    peers: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def ratio(self) -> dict[str, float]:
        """How many times ours is better than each peer, by the medians.

        A peer is left out where that is no number: a difference may be 0 or below.
        """
        ours = statistics.median(self.ours)
        found = {}
        for name, samples in self.peers.items():
            theirs = statistics.median(samples)
            if ours > 0 and theirs > 0:
                found[name] = theirs / ours if self.better == "lower" else ours / theirs
        return found

    def to_json(self) -> dict[str, Any]:
        """As README.md has it."""
        return {
            "name": self.name,
            "unit": self.unit,
            "better": self.better,
            "ours": asdict(Summary.of(self.ours)),
            "peers": {name: asdict(Summary.of(samples)) for name, samples in self.peers.items()},
            "ratio": self.ratio,
        }


def in_turns(ways: Mapping[str, Callable[[], T]], rounds: int) -> dict[str, list[T]]:
    """What each way gives in each round; the order of a round is drawn, alike in each run.

    So what else the machine does hits all alike, and none always comes after the same other.
    """
    found: dict[str, list[T]] = {name: [] for name in ways}
    order = random.Random(0)
    for _ in range(rounds):
        for name in order.sample(list(ways), len(ways)):
            found[name].append(ways[name]())
    return found


def machine(*facts: str) -> str:
    """Where it runs: processors of this process, memory, versions, then ``facts``."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = [
        f"{len(os.sched_getaffinity(0))} cores",
        f"{memory:.0f} GiB",
        f"Python {platform.python_version()}",
        f"{platform.system()} {platform.release()} {platform.machine()}",
    ]
    return ", ".join([*parts, *facts])


def load() -> str:
    """What else the machine does: its load average over the last minute."""
    return f"{os.getloadavg()[0]:.1f}"


def table(rows: Sequence[Row]) -> str:
    """The rows for reading: median and 99th percentile of each, and the ratio to each peer."""
    lines = []
    for row in rows:
        lines.append(f"{row.name} [{row.unit}, {row.better} is better]")
        width = max(map(len, ["ours", *row.peers]))
        for name, samples in {"ours": row.ours, **row.peers}.items():
            told = Summary.of(samples)
            line = f"  {name:<{width}}  median {told.median:10.3f}  p99 {told.p99:10.3f}"
            line += f"  n {told.n:>4}"
            if name in row.ratio:
                line += f"  ours is {row.ratio[name]:.2f} times as good"
            lines.append(line)
    return "\n".join(lines)


def write(path: Path, where: str, rows: Sequence[Row]) -> None:
    """Write the file that README.md describes."""
    found = {"machine": where, "rows": [row.to_json() for row in rows]}
    path.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")

"""The tree that a message to many hosts goes down. Pure: hosts and ranks in, branches out.

Each host on the way splits what it was sent anew, among the hosts that are concerned and no
others, so nobody keeps a tree: a host that is gone is simply not among those that are split.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FAN_OUT = 16
"""So many branches a host sends a message down at most."""


class Branch(NamedTuple):
    """A part of a message: for these ranks, which live on ``head`` and the hosts below it."""

    head: int
    ranks: tuple[int, ...]


def plan(hosts: Mapping[int, Sequence[int]], fan_out: int = FAN_OUT) -> list[Branch]:
    """Split hosts, each with its ranks, evenly into at most ``fan_out`` branches, in order.

    A branch's head is the first of its hosts. One that splits its branch likewise, after it has
    taken its own ranks, reaches ``n`` hosts over at most ``ceil(log(n, fan_out)) + 1`` links.
    """
    names = list(hosts)
    count = min(len(names), fan_out)
    size, longer = divmod(len(names), count or 1)
    branches = []
    start = 0
    for index in range(count):
        end = start + size + (index < longer)
        ranks = itertools.chain.from_iterable(hosts[name] for name in names[start:end])
        branches.append(Branch(names[start], tuple(ranks)))
        start = end
    return branches

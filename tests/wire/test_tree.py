"""The tree: each rank is in one branch, and no host is far from the top."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.wire.tree import FAN_OUT, plan

meshes = st.dictionaries(
    st.integers(0, 5000), st.lists(st.integers(0, 2**20), max_size=4), min_size=1, max_size=60
)


@given(st.integers(0, 600), st.integers(2, 20), st.integers(1, 3))
def test_every_rank_is_reached_once_over_few_links(number, fan_out, per_host):
    hosts = {
        host * 3: list(range(host * per_host, (host + 1) * per_host)) for host in range(number)
    }

    def levels(hosts, level):
        for branch in plan(hosts, fan_out):
            here = {rank // per_host * 3 for rank in branch.ranks}
            below = {host: hosts[host] for host in hosts if host in here}
            reached.append((below.pop(branch.head), level))
            levels(below, level + 1)

    reached: list[tuple[list[int], int]] = []
    levels(hosts, 1)
    ranks = [rank for own, _ in reached for rank in own]
    assert sorted(ranks) == list(range(number * per_host))
    if number > 1:
        assert max(level for _, level in reached) <= math.ceil(math.log(number, fan_out)) + 1


@given(meshes)
def test_branches_are_few_even_and_in_order(hosts):
    branches = plan(hosts)
    assert len(branches) == min(len(hosts), FAN_OUT)
    assert [rank for branch in branches for rank in branch.ranks] == [
        rank for ranks in hosts.values() for rank in ranks
    ]
    order = list(hosts)
    starts = [order.index(branch.head) for branch in branches]
    assert starts == sorted(set(starts))
    sizes = [end - start for start, end in zip(starts, [*starts[1:], len(order)], strict=True)]
    assert max(sizes) - min(sizes) <= 1

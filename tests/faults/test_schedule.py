"""When and whom: schedules and aiming."""

from __future__ import annotations

from collections import Counter
from itertools import islice, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.faults import SIGNALS, FaultPlan, Hit, Miss, Shot, Target, aim, parse_all, schedule

PLANS = st.lists(
    st.builds(FaultPlan, st.sampled_from(sorted(SIGNALS)), st.floats(0.1, 10.0)),
    min_size=1,
    max_size=3,
)


@given(PLANS, st.integers(1, 8), st.integers())
def test_a_seed_decides_everything(plans, replicas, seed):
    first = list(islice(schedule(plans, replicas, seed), 30))
    assert first == list(islice(schedule(plans, replicas, seed), 30))
    times = [shot.at_s for shot in first]
    assert times == sorted(times)
    assert all(0 <= shot.replica < replicas and 0 <= shot.draw < 1 for shot in first)
    # Each plan fires at each multiple of its interval, whatever the others do.
    for plan in plans:
        mine = [shot.at_s for shot in first if shot.plan is plan]
        assert mine == [plan.every_s * (i + 1) for i in range(len(mine))]
        assert first[-1].at_s - (mine[-1] if mine else 0.0) <= plan.every_s + 1e-9


def test_another_plan_does_not_change_the_victims_of_the_first():
    alone = islice(schedule(parse_all("kill@3s"), 4, seed=7), 5)
    both = schedule(parse_all("kill@3s,abort@2s"), 4, seed=7)
    kills = (shot for shot in both if shot.plan.kind == "kill")
    assert list(islice(kills, 5)) == list(alone)


def test_victims_are_spread_evenly_and_differ_with_the_seed():
    hits = Counter(s.replica for s in islice(schedule(parse_all("kill@1s"), 4, seed=0), 4000))
    assert all(900 < hits[replica] < 1100 for replica in range(4))
    orders = {
        tuple(s.replica for s in islice(schedule(parse_all("kill@1s"), 4, seed), 10))
        for seed in range(20)
    }
    assert len(orders) == 20


def test_no_plans_no_shots():
    assert list(schedule((), 4, seed=0)) == []


def test_a_schedule_needs_a_victim():
    with pytest.raises(UsageError, match="at least one replica"):
        schedule(parse_all("kill@1s"), 0, seed=0)


def test_shots_come_at_multiples_of_the_interval():
    shots = takewhile(lambda shot: shot.at_s <= 10, schedule(parse_all("kill@3s"), 4, seed=0))
    assert [shot.at_s for shot in shots] == [3.0, 6.0, 9.0]


# ------------------------------------------------------------------ aiming

KILL = FaultPlan("kill", 3.0)


def target(replica, rank=0, ready=True):
    return Target(replica, f"replica{replica}", rank, "node0", 1000 + 10 * replica + rank, ready)


def test_the_replica_scheduled_is_hit():
    targets = [target(r) for r in range(4)]
    assert aim(Shot(3.0, KILL, 2, 0.5), targets, 1) == Hit(targets[2])


def test_the_next_ready_one_is_hit_instead():
    targets = [target(0), target(1), target(2, ready=False), target(3, ready=False)]
    assert aim(Shot(3.0, KILL, 2, 0.0), targets, 1) == Hit(targets[0], meant_for=2)


def test_a_replica_with_one_process_not_ready_is_not_ready():
    targets = [target(0), target(1, 0), target(1, 1, ready=False), target(2)]
    assert aim(Shot(3.0, KILL, 1, 0.0), targets, 1) == Hit(targets[3], meant_for=1)


def test_the_draw_picks_the_process():
    targets = [target(r, rank) for r in range(2) for rank in (1, 0, 2)]
    ranks = [aim(Shot(3.0, KILL, 1, draw), targets, 1).target.rank for draw in (0.0, 0.4, 0.99)]
    assert ranks == [0, 1, 2]


def test_the_last_donor_is_never_hit():
    targets = [target(0, ready=False), target(1)]
    miss = aim(Shot(3.0, KILL, 1, 0.0), targets, 1)
    assert miss == Miss("only 1 ready, and 1 must be left to heal from")
    assert aim(Shot(3.0, KILL, 1, 0.0), targets, 0) == Hit(targets[1])


@pytest.mark.parametrize("targets", [[], [target(0, ready=False)]])
def test_nobody_ready(targets):
    assert aim(Shot(3.0, KILL, 0, 0.0), targets, 0) == Miss("no replica is ready")


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=15),
    st.integers(0, 5),
    st.floats(0, 1, exclude_max=True),
    st.integers(0, 3),
)
def test_only_ready_replicas_are_hit(processes, replica, draw, survivors):
    targets = [target(*process) for process in processes]
    ready = {t.replica for t in targets} - {t.replica for t in targets if not t.ready}
    decision = aim(Shot(1.0, KILL, replica, draw), targets, survivors)
    if isinstance(decision, Miss):
        assert len(ready) <= survivors
        assert decision.reason
    else:
        assert decision.target in targets
        assert decision.target.replica in ready
        assert len(ready) > survivors
        assert (decision.meant_for is None) == (decision.target.replica == replica)

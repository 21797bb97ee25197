"""The supervisor's rules, one by one: events in, lists of actions out."""

from __future__ import annotations

import pytest

from slurmmesh.errors import ExitCause, UsageError
from slurmmesh.supervision import (
    Escalate,
    HostDown,
    KillRanks,
    MeshSupervisor,
    ProcExited,
    ProcUp,
    RestartRanks,
    Supervision,
)

MESH = "trainers"


def cause(rank, signal=9, pid=0, exit_code=None):
    return ExitCause(MESH, rank, f"node{rank}", pid, exit_code=exit_code, signal=signal)


def died(rank, **fields):
    """A rank ended of its own accord."""
    return ProcExited(cause(rank), **fields)


def ended(rank):
    """A rank ended because it was told to."""
    return ProcExited(cause(rank), expected=True)


def supervisor(strategy="one_for_one", size=4, max_restarts=10, within_s=60.0, up=True):
    made = MeshSupervisor(Supervision(strategy, max_restarts, within_s), MESH, size)
    if up:
        for rank in range(size):
            assert made.handle(ProcUp(rank), 0.0) == []
    return made


# ------------------------------------------------------------------ strategies


def test_one_for_one_restarts_only_the_dead():
    mesh = supervisor()
    assert mesh.handle(died(2), 1.0) == [
        RestartRanks(MESH, (2,), 1),
    ]
    assert mesh.handle(ProcUp(2, incarnation=1), 1.1) == []
    assert mesh.handle(died(0), 2.0) == [RestartRanks(MESH, (0,), 2)]
    assert [mesh.incarnation_of(rank) for rank in range(4)] == [2, 0, 1, 0]


def test_one_for_all_ends_the_others_first_and_the_last_started_first():
    mesh = supervisor("one_for_all")
    assert mesh.handle(died(1), 1.0) == [KillRanks(MESH, (3, 2, 0))]
    assert mesh.handle(ended(3), 1.1) == []
    assert mesh.handle(ended(0), 1.1) == []
    assert mesh.handle(ended(2), 1.2) == [RestartRanks(MESH, (0, 1, 2, 3), 1)]


def test_rest_for_one_restarts_the_dead_and_what_was_started_after_it():
    mesh = supervisor("rest_for_one")
    assert mesh.handle(died(1), 1.0) == [KillRanks(MESH, (3, 2))]
    assert mesh.handle(ended(2), 1.1) == []
    assert mesh.handle(ended(3), 1.2) == [RestartRanks(MESH, (1, 2, 3), 1)]
    assert mesh.handle(died(3, incarnation=1), 2.0) == [RestartRanks(MESH, (3,), 2)]


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
def test_a_mesh_of_one_restarts_at_once(strategy):
    mesh = supervisor(strategy, size=1)
    assert mesh.handle(died(0), 1.0) == [RestartRanks(MESH, (0,), 1)]


def test_a_rank_may_die_before_it_was_ever_ready():
    mesh = supervisor("one_for_all", size=2, up=False)
    assert mesh.handle(died(0), 1.0) == [KillRanks(MESH, (1,))]
    assert mesh.handle(ended(1), 1.1) == [RestartRanks(MESH, (0, 1), 1)]
    assert mesh.handle(died(1, incarnation=1), 1.2) == [KillRanks(MESH, (0,))]


# ------------------------------------------------------------------ deaths at the same time


def test_two_killed_together_are_one_wave():
    mesh = supervisor("one_for_all")
    assert mesh.handle(died(1), 1.0) == [KillRanks(MESH, (3, 2, 0))]
    # Rank 2 had died by itself before the order reached it.
    assert mesh.handle(died(2), 1.0) == []
    assert mesh.handle(ended(0), 1.1) == []
    assert mesh.handle(ended(3), 1.1) == [RestartRanks(MESH, (0, 1, 2, 3), 1)]


def test_deaths_of_one_wave_count_once():
    mesh = supervisor("one_for_all", size=2, max_restarts=1)
    assert mesh.handle(died(0), 1.0) == [KillRanks(MESH, (1,))]
    assert mesh.handle(died(1), 1.0) == [RestartRanks(MESH, (0, 1), 1)]


def test_a_death_outside_widens_a_wave_and_counts():
    mesh = supervisor("rest_for_one", size=5, max_restarts=2)
    assert mesh.handle(died(3), 1.0) == [KillRanks(MESH, (4,))]
    assert mesh.handle(died(1), 1.0) == [KillRanks(MESH, (2,))]
    assert mesh.handle(ended(4), 1.1) == []
    assert mesh.handle(ended(2), 1.1) == [RestartRanks(MESH, (1, 2, 3, 4), 1)]
    third = mesh.handle(died(4), 1.2)
    assert [type(action) for action in third] == [KillRanks, Escalate]


def lost(*ranks):
    """A host with these ranks is lost."""
    return HostDown(
        tuple(ExitCause(MESH, rank, "node9", 77, detail="link closed") for rank in ranks)
    )


@pytest.mark.parametrize("max_restarts", [0, 3])
def test_one_for_one_gives_up_the_ranks_of_a_lost_host_and_no_others(max_restarts):
    mesh = supervisor(max_restarts=max_restarts)
    down = lost(1, 2)
    reason = (
        "mesh 'trainers' has lost rank 1, 2 with its host: "
        "rank 2 of 'trainers' on node9 (pid 77) lost: link closed"
    )
    assert mesh.handle(down, 1.0) == [Escalate(MESH, (1, 2), down.causes, reason)]
    assert not mesh.ended
    assert mesh.handle(down, 1.1) == []
    assert mesh.handle(died(1), 1.1) == []
    if max_restarts:
        assert mesh.handle(died(3), 1.2) == [RestartRanks(MESH, (3,), 1)]


@pytest.mark.parametrize("strategy", ["one_for_all", "rest_for_one"])
def test_ranks_that_need_each_other_are_given_up_with_a_lost_host(strategy):
    mesh = supervisor(strategy, size=3)
    down = lost(1)
    killed, escalated = mesh.handle(down, 1.0)
    assert killed == KillRanks(MESH, (2, 0))
    assert (escalated.ranks, escalated.causes) == ((0, 1, 2), down.causes)
    assert mesh.ended


def test_a_host_lost_in_a_wave_ends_the_mesh():
    mesh = supervisor("one_for_all", size=3)
    mesh.handle(died(0), 1.0)
    assert mesh.handle(ended(1), 1.1) == []
    [escalated] = mesh.handle(lost(2), 1.2)
    assert escalated.ranks == (0, 1, 2)


def test_a_restart_on_a_host_that_is_lost_gives_up_its_ranks():
    mesh = supervisor(size=2)
    assert mesh.handle(died(1), 1.0) == [RestartRanks(MESH, (1,), 1)]
    [escalated] = mesh.handle(lost(1), 1.1)
    assert escalated.ranks == (1,)
    assert not mesh.ended


def test_a_death_counts_once():
    mesh = supervisor("one_for_all", size=3)
    assert mesh.handle(died(0), 1.0) == [KillRanks(MESH, (2, 1))]
    assert mesh.handle(died(0), 1.0) == []
    assert mesh.handle(lost(0), 1.0)[-1].causes == lost(0).causes


def test_late_news_of_a_replaced_process_is_ignored():
    mesh = supervisor(size=2)
    mesh.handle(ProcUp(0, pid=100), 0.0)
    mesh.handle(died(0, incarnation=0), 1.0)
    assert mesh.handle(died(0, incarnation=0), 1.1) == []
    assert mesh.handle(ProcUp(0, pid=100, incarnation=0), 1.1) == []
    mesh.handle(ProcUp(0, pid=200, incarnation=1), 1.2)
    assert mesh.handle(ProcExited(cause(0, pid=100)), 1.3) == []
    newer = ProcExited(cause(0, pid=200))
    assert mesh.handle(newer, 1.4)[-1] == RestartRanks(MESH, (0,), 2)


# ------------------------------------------------------------------ restart intensity


def test_one_failure_too_many_ends_the_mesh_and_escalates():
    mesh = supervisor(size=3, max_restarts=2, within_s=10.0)
    assert mesh.handle(died(0), 0.0)[-1] == RestartRanks(MESH, (0,), 1)
    assert mesh.handle(died(0), 1.0)[-1] == RestartRanks(MESH, (0,), 2)
    killed, escalated = mesh.handle(died(1), 2.0)
    assert killed == KillRanks(MESH, (2, 0))
    assert escalated.causes == (cause(0), cause(0), cause(1))
    assert escalated.reason == (
        "mesh 'trainers' failed 3 times within 10 s, where 2 restarts are allowed; "
        "last: rank 1 of 'trainers' on node1 (pid 0) killed by SIGKILL"
    )
    assert mesh.ended
    # What it ends now is no news; what dies by itself is, but nothing comes back.
    assert mesh.handle(ended(2), 2.1) == []
    assert mesh.handle(died(0), 2.1) == []
    assert mesh.handle(died(0), 99.0) == []


def test_the_window_slides():
    mesh = supervisor(size=1, max_restarts=2, within_s=10.0)
    for at in (0.0, 5.0, 10.1, 15.2, 20.3):
        assert mesh.handle(died(0), at)[-1] == RestartRanks(MESH, (0,), mesh.incarnation_of(0))
    # 15.2 and 20.3 are in the window; one exactly 10 s ago still counts.
    assert isinstance(mesh.handle(died(0), 25.2)[-1], Escalate)


def test_a_restart_counts_from_when_it_happens():
    """Ending the others took 20 s; the restart is still within the last 10 s."""
    mesh = supervisor("one_for_all", size=2, max_restarts=1, within_s=10.0)
    mesh.handle(died(0), 0.0)
    assert mesh.handle(ended(1), 20.0) == [RestartRanks(MESH, (0, 1), 1)]
    assert isinstance(mesh.handle(died(0), 21.0)[-1], Escalate)


def test_no_restart_allowed_means_the_first_death_escalates():
    mesh = supervisor(size=1, max_restarts=0)
    assert [type(a) for a in mesh.handle(died(0), 5.0)] == [Escalate]


def test_causes_include_all_deaths_of_the_failures_that_count():
    mesh = supervisor("one_for_all", size=3, max_restarts=1, within_s=10.0)
    mesh.handle(died(0), 1.0)
    mesh.handle(died(2), 1.0)
    mesh.handle(ended(1), 1.0)
    escalated = mesh.handle(died(1), 2.0)[-1]
    assert [c.rank for c in escalated.causes] == [0, 2, 1]


def test_ranks_already_being_ended_are_not_ended_twice():
    mesh = supervisor("rest_for_one", size=4, max_restarts=1)
    assert mesh.handle(died(2), 1.0) == [KillRanks(MESH, (3,))]
    assert mesh.handle(died(0), 1.0)[0] == KillRanks(MESH, (1,))
    assert mesh.ended


# ------------------------------------------------------------------ stopping and giving up


def test_nothing_comes_back_after_stop():
    mesh = supervisor("one_for_all", size=3)
    mesh.stopping()
    assert mesh.ended
    assert mesh.handle(ended(0), 1.0) == []
    assert mesh.handle(ProcExited(cause(1, signal=None, exit_code=0)), 1.0) == []
    # A crash on the way out is still told.
    assert mesh.handle(died(2), 1.0) == []
    assert mesh.handle(lost(0, 1, 2), 1.1) == []


def test_stop_in_the_middle_of_a_wave():
    mesh = supervisor("one_for_all", size=3)
    mesh.handle(died(0), 1.0)
    mesh.stopping()
    assert mesh.handle(ended(1), 1.1) == []
    assert mesh.handle(ended(2), 1.1) == []


def test_a_rank_ended_by_others_order_stays_away():
    mesh = supervisor("one_for_all", size=3)
    assert mesh.handle(ended(1), 1.0) == []
    assert mesh.handle(died(0), 2.0) == [KillRanks(MESH, (2,))]
    assert mesh.handle(ended(2), 2.1) == [RestartRanks(MESH, (0, 2), 1)]


def test_a_mesh_without_supervision_asks_for_nothing():
    mesh = MeshSupervisor(None, MESH, 2)
    assert mesh.handle(died(0), 1.0) == []
    assert mesh.handle(died(0), 1.0) == []
    assert mesh.handle(lost(1), 1.0) == []


@pytest.mark.parametrize(
    "event",
    [
        ProcUp(4),
        died(4),
        died(-1),
        lost(0, 4),
        ProcExited(ExitCause("others", 0, "node0", 1)),
    ],
)
def test_events_of_others_are_refused(event):
    mesh = supervisor()
    with pytest.raises(UsageError):
        mesh.handle(event, 1.0)
    # And nothing was changed on the way.
    assert mesh.handle(died(0), 1.0) == [RestartRanks(MESH, (0,), 1)]

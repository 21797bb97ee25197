"""The supervisor's rules, one by one: events in, lists of actions out."""

from __future__ import annotations

import pytest

from slurmmesh.errors import ExitCause, UsageError
from slurmmesh.supervision import (
    CannotStart,
    Escalate,
    HostDown,
    KillRanks,
    MeshSupervisor,
    ProcExited,
    ProcUp,
    ReportDeath,
    RestartRanks,
    Supervision,
)

MESH = "trainers"


def cause(rank, signal=9, pid=0, exit_code=None):
    return ExitCause(MESH, rank, f"node{rank}", pid, exit_code=exit_code, signal=signal)


def died(rank, at=0.0, **fields):
    """A rank ended of its own accord."""
    return ProcExited(cause(rank), at, **fields)


def ended(rank):
    """A rank ended because it was told to."""
    return ProcExited(cause(rank), 0.0, expected=True)


def report(rank, at=0.0):
    return ReportDeath(cause(rank), at)


def supervisor(strategy="one_for_one", size=4, max_restarts=10, within_s=60.0, up=True):
    made = MeshSupervisor(Supervision(strategy, max_restarts, within_s), MESH, size)
    if up:
        for rank in range(size):
            assert made.handle(ProcUp(rank), 0.0) == []
    return made


# ------------------------------------------------------------------ strategies


def test_one_for_one_restarts_only_the_dead():
    mesh = supervisor()
    assert mesh.handle(died(2, at=7.5), 1.0) == [
        report(2, at=7.5),
        RestartRanks(MESH, (2,), 1),
    ]
    assert mesh.handle(ProcUp(2, incarnation=1), 1.1) == []
    assert mesh.handle(died(0), 2.0) == [report(0), RestartRanks(MESH, (0,), 2)]
    assert [mesh.incarnation_of(rank) for rank in range(4)] == [2, 0, 1, 0]


def test_one_for_all_ends_the_others_first_and_the_last_started_first():
    mesh = supervisor("one_for_all")
    assert mesh.handle(died(1), 1.0) == [report(1), KillRanks(MESH, (3, 2, 0))]
    assert mesh.handle(ended(3), 1.1) == []
    assert mesh.handle(ended(0), 1.1) == []
    assert mesh.handle(ended(2), 1.2) == [RestartRanks(MESH, (0, 1, 2, 3), 1)]


def test_rest_for_one_restarts_the_dead_and_what_was_started_after_it():
    mesh = supervisor("rest_for_one")
    assert mesh.handle(died(1), 1.0) == [report(1), KillRanks(MESH, (3, 2))]
    assert mesh.handle(ended(2), 1.1) == []
    assert mesh.handle(ended(3), 1.2) == [RestartRanks(MESH, (1, 2, 3), 1)]
    assert mesh.handle(died(3, incarnation=1), 2.0) == [report(3), RestartRanks(MESH, (3,), 2)]


@pytest.mark.parametrize("strategy", ["one_for_one", "one_for_all", "rest_for_one"])
def test_a_mesh_of_one_restarts_at_once(strategy):
    mesh = supervisor(strategy, size=1)
    assert mesh.handle(died(0), 1.0) == [report(0), RestartRanks(MESH, (0,), 1)]


def test_a_rank_may_die_before_it_was_ever_ready():
    mesh = supervisor("one_for_all", size=2, up=False)
    assert mesh.handle(died(0), 1.0) == [report(0), KillRanks(MESH, (1,))]
    assert mesh.handle(ended(1), 1.1) == [RestartRanks(MESH, (0, 1), 1)]
    assert mesh.handle(died(1, incarnation=1), 1.2) == [report(1), KillRanks(MESH, (0,))]


# ------------------------------------------------------------------ deaths at the same time


def test_two_killed_together_are_both_reported():
    mesh = supervisor("one_for_all")
    assert mesh.handle(died(1), 1.0) == [report(1), KillRanks(MESH, (3, 2, 0))]
    # Rank 2 had died by itself before the order reached it.
    assert mesh.handle(died(2), 1.0) == [report(2)]
    assert mesh.handle(ended(0), 1.1) == []
    assert mesh.handle(ended(3), 1.1) == [RestartRanks(MESH, (0, 1, 2, 3), 1)]


def test_deaths_of_one_wave_count_once():
    mesh = supervisor("one_for_all", size=2, max_restarts=1)
    assert mesh.handle(died(0), 1.0) == [report(0), KillRanks(MESH, (1,))]
    assert mesh.handle(died(1), 1.0) == [report(1), RestartRanks(MESH, (0, 1), 1)]


def test_a_death_outside_widens_a_wave_and_counts():
    mesh = supervisor("rest_for_one", size=5, max_restarts=2)
    assert mesh.handle(died(3), 1.0) == [report(3), KillRanks(MESH, (4,))]
    assert mesh.handle(died(1), 1.0) == [report(1), KillRanks(MESH, (2,))]
    assert mesh.handle(ended(4), 1.1) == []
    assert mesh.handle(ended(2), 1.1) == [RestartRanks(MESH, (1, 2, 3, 4), 1)]
    third = mesh.handle(died(4), 1.2)
    assert [type(action) for action in third] == [ReportDeath, KillRanks, Escalate]


def test_a_lost_host_is_one_failure_with_a_death_for_each_rank():
    mesh = supervisor(max_restarts=1)
    mesh.handle(ProcUp(1, pid=77), 0.5)
    actions = mesh.handle(HostDown("node1", (1, 2, 2), at=9.0, detail="link closed"), 1.0)
    assert actions[-1] == RestartRanks(MESH, (1, 2), 1)
    reports = actions[:-1]
    assert [(r.cause.rank, r.cause.host, r.at) for r in reports] == [
        (1, "node1", 9.0),
        (2, "node1", 9.0),
    ]
    assert reports[0].cause.describe() == (
        "rank 1 of 'trainers' on node1 (pid 77) lost: its host is lost: link closed"
    )
    assert mesh.handle(HostDown("node1", (1, 2), at=9.0), 1.1)[-1].causes != ()


def test_a_host_lost_while_its_ranks_are_being_ended_completes_the_wave():
    mesh = supervisor("one_for_all", size=3)
    mesh.handle(died(0), 1.0)
    assert mesh.handle(ended(1), 1.1) == []
    assert mesh.handle(HostDown("node2", (2,), at=0.0), 1.2) == [RestartRanks(MESH, (0, 1, 2), 1)]


def test_a_death_is_reported_once():
    mesh = supervisor("one_for_all", size=3)
    assert mesh.handle(died(0), 1.0) == [report(0), KillRanks(MESH, (2, 1))]
    assert mesh.handle(died(0), 1.0) == []
    assert mesh.handle(HostDown("node0", (0,), at=1.0), 1.0) == []


def test_late_news_of_a_replaced_process_is_ignored():
    mesh = supervisor(size=2)
    mesh.handle(ProcUp(0, pid=100), 0.0)
    mesh.handle(died(0, incarnation=0), 1.0)
    assert mesh.handle(died(0, incarnation=0), 1.1) == []
    assert mesh.handle(ProcUp(0, pid=100, incarnation=0), 1.1) == []
    mesh.handle(ProcUp(0, pid=200, incarnation=1), 1.2)
    assert mesh.handle(ProcExited(cause(0, pid=100), 0.0), 1.3) == []
    newer = ProcExited(cause(0, pid=200), 0.0)
    assert mesh.handle(newer, 1.4)[-1] == RestartRanks(MESH, (0,), 2)


# ------------------------------------------------------------------ restart intensity


def test_one_failure_too_many_ends_the_mesh_and_escalates():
    mesh = supervisor(size=3, max_restarts=2, within_s=10.0)
    assert mesh.handle(died(0), 0.0)[-1] == RestartRanks(MESH, (0,), 1)
    assert mesh.handle(died(0), 1.0)[-1] == RestartRanks(MESH, (0,), 2)
    reported, killed, escalated = mesh.handle(died(1), 2.0)
    assert reported == report(1)
    assert killed == KillRanks(MESH, (2, 0))
    assert escalated.causes == (cause(0), cause(0), cause(1))
    assert escalated.reason == (
        "mesh 'trainers' failed 3 times within 10 s, where 2 restarts are allowed; "
        "last: rank 1 of 'trainers' on node1 (pid 0) killed by SIGKILL"
    )
    assert mesh.ended
    # What it ends now is no news; what dies by itself is, but nothing comes back.
    assert mesh.handle(ended(2), 2.1) == []
    assert mesh.handle(died(0), 2.1) == [report(0)]
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
    assert [type(a) for a in mesh.handle(died(0), 5.0)] == [ReportDeath, Escalate]


def test_causes_include_all_deaths_of_the_failures_that_count():
    mesh = supervisor("one_for_all", size=3, max_restarts=1, within_s=10.0)
    mesh.handle(died(0), 1.0)
    mesh.handle(died(2), 1.0)
    mesh.handle(ended(1), 1.0)
    escalated = mesh.handle(died(1), 2.0)[-1]
    assert [c.rank for c in escalated.causes] == [0, 2, 1]


def test_ranks_already_being_ended_are_not_ended_twice():
    mesh = supervisor("rest_for_one", size=4, max_restarts=1)
    assert mesh.handle(died(2), 1.0)[1] == KillRanks(MESH, (3,))
    assert mesh.handle(died(0), 1.0)[1] == KillRanks(MESH, (1,))
    assert mesh.ended


# ------------------------------------------------------------------ stopping and giving up


def test_nothing_comes_back_after_stop():
    mesh = supervisor("one_for_all", size=3)
    mesh.stopping()
    assert mesh.ended
    assert mesh.handle(ended(0), 1.0) == []
    assert mesh.handle(ProcExited(cause(1, signal=None, exit_code=0), 0.0), 1.0) == []
    # A crash on the way out is still told.
    assert mesh.handle(died(2), 1.0) == [report(2)]
    assert mesh.handle(HostDown("node0", (0, 1, 2), at=1.0), 1.1) == []


def test_stop_in_the_middle_of_a_wave():
    mesh = supervisor("one_for_all", size=3)
    mesh.handle(died(0), 1.0)
    mesh.stopping()
    assert mesh.handle(ended(1), 1.1) == []
    assert mesh.handle(ended(2), 1.1) == []


def test_ranks_that_cannot_be_started_escalate_at_once():
    mesh = supervisor(size=2)
    mesh.handle(HostDown("node1", (1,), at=0.0), 1.0)
    actions = mesh.handle(CannotStart((1,), "no spare host is left"), 1.1)
    assert actions == [
        KillRanks(MESH, (0,)),
        Escalate(
            MESH, actions[1].causes, "mesh 'trainers' cannot restart rank 1: no spare host is left"
        ),
    ]
    assert [c.rank for c in actions[1].causes] == [1]
    assert mesh.handle(CannotStart((1,), "again"), 1.2) == []


def test_a_rank_ended_by_others_order_stays_away():
    mesh = supervisor("one_for_all", size=3)
    assert mesh.handle(ended(1), 1.0) == []
    assert mesh.handle(died(0), 2.0) == [report(0), KillRanks(MESH, (2,))]
    assert mesh.handle(ended(2), 2.1) == [RestartRanks(MESH, (0, 2), 1)]


def test_a_mesh_without_supervision_only_reports():
    mesh = MeshSupervisor(None, MESH, 2)
    assert mesh.handle(died(0), 1.0) == [report(0)]
    assert mesh.handle(died(0), 1.0) == []
    assert len(mesh.handle(HostDown("node1", (1,), at=0.0), 1.0)) == 1
    assert mesh.handle(CannotStart((0,), "x"), 1.0) == []


@pytest.mark.parametrize(
    "event",
    [
        ProcUp(4),
        died(4),
        died(-1),
        HostDown("node9", (0, 4), at=0.0),
        CannotStart((4,), ""),
        ProcExited(ExitCause("others", 0, "node0", 1), 0.0),
    ],
)
def test_events_of_others_are_refused(event):
    mesh = supervisor()
    with pytest.raises(UsageError):
        mesh.handle(event, 1.0)
    # And nothing was changed on the way.
    assert mesh.handle(died(0), 1.0) == [report(0), RestartRanks(MESH, (0,), 1)]

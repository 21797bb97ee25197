"""The meshes of a job as its event log tells of them."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from wild_events import events

from slurmmesh.telemetry.meshes import MeshHistory


def fold(*log: dict[str, Any]) -> MeshHistory:
    history = MeshHistory()
    for t, event in enumerate(log):
        history.add({"t": float(t), **event})
    return history


def spawned(name: str = "m", size: int = 2, **more: Any) -> dict[str, Any]:
    ranks = list(range(size))
    return {
        "kind": "procs_spawned",
        "mesh": name,
        "ranks": ranks,
        "hosts": [f"node{rank}" for rank in ranks],
        "sizes": {"hosts": size},
        "supervised": True,
        **more,
    }


def up(rank: int, pid: int, incarnation: int = 0, mesh: str = "m") -> dict[str, Any]:
    return {
        "kind": "proc_up",
        "mesh": mesh,
        "rank": rank,
        "host": f"node{rank}",
        "pid": pid,
        "incarnation": incarnation,
    }


def exited(rank: int, pid: int, **more: Any) -> dict[str, Any]:
    return {
        "kind": "proc_exited",
        "mesh": "m",
        "rank": rank,
        "host": f"node{rank}",
        "pid": pid,
        "signal": "SIGKILL",
        "exit_code": None,
        "detail": "",
        "expected": False,
        **more,
    }


def states(history: MeshHistory) -> list[list[str]]:
    return [[rank.state for rank in mesh.ranks.values()] for mesh in history.meshes]


def test_a_rank_dies_and_comes_back() -> None:
    log = [spawned(), up(0, 10), up(1, 11), exited(1, 11, detail="out of memory")]
    history = fold(*log)
    assert states(history) == [["up", "restarting"]]
    (failure,) = history.failures
    assert (failure.rank, failure.host, failure.pid) == (1, "node1", 11)
    assert failure.cause == "killed by SIGKILL: out of memory"
    assert failure.back_s is None
    history = fold(*log, up(1, 12, incarnation=1))
    assert states(history) == [["up", "up"]]
    assert history.meshes[0].ranks[1].restarts == 1
    assert history.failures[0].back_s == 1.0
    assert history.meshes[0].sizes == {"hosts": 2}


def test_a_rank_that_nobody_starts_again_is_dead() -> None:
    history = fold(spawned(supervised=False), up(0, 10), up(1, 11), exited(1, 11))
    assert states(history) == [["up", "dead"]]


def test_ranks_that_are_given_up_have_failed() -> None:
    log = [spawned(), up(0, 10), up(1, 11), exited(1, 11)]
    given_up = {"kind": "ranks_given_up", "mesh": "m", "ranks": [0, 1], "reason": "too often"}
    history = fold(*log, given_up, exited(0, 10, expected=True))
    assert states(history) == [["failed", "failed"]]
    assert len(history.failures) == 1


def test_what_ends_in_order_is_no_failure() -> None:
    history = fold(spawned(), up(0, 10), exited(0, 10, expected=True, exit_code=0, signal=""))
    assert states(history) == [["ended", "starting"]]
    assert history.failures == []
    history = fold(spawned(), up(0, 10), {"kind": "job_ended", "exit_code": 0})
    assert states(history) == [["ended", "ended"]]


def test_two_meshes_of_one_name_are_told_apart_by_their_processes() -> None:
    first = [spawned(size=1), up(0, 10)]
    second = [spawned(size=1), up(0, 20)]
    assert states(fold(*first, *second, exited(0, 10))) == [["restarting"], ["up"]]


def test_a_host_that_is_lost() -> None:
    lost = {"kind": "host_lost", "host": 1, "name": "node1", "cause": "no sign of life"}
    history = fold(spawned(), lost)
    assert [(host.name, host.cause) for host in history.lost_hosts] == [
        ("node1", "no sign of life")
    ]
    assert fold(lost, {"kind": "job_started"}).lost_hosts == []


def test_a_log_without_its_beginning() -> None:
    history = fold(up(3, 10), exited(3, 10))
    assert states(history) == [["dead"]]
    assert history.failures[0].cause == "killed by SIGKILL"


@settings(max_examples=200, deadline=None)
@given(st.lists(events(), max_size=25))
def test_no_sequence_of_events_raises(log: list[dict[str, Any]]) -> None:
    history = MeshHistory()
    for event in log:
        history.add(event)
    for mesh in history.meshes:
        assert sum(mesh.count().values()) == len(mesh.ranks)
    assert all(failure.back_s is None or failure.back_s >= 0 for failure in history.failures)

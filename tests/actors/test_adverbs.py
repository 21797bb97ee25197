"""The ways to call an endpoint, on real procs: choose, stream, accumulate, deadlines, futures."""

from __future__ import annotations

import asyncio
import operator
import os
import signal
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.errors import ActorError, CallTimeout, ProcDied, SupervisionError, UsageError

HOSTS = 2


class Member(sm.Actor):
    def __init__(self) -> None:
        here = sm.context()
        self.built_at = (here.actor_instance.rank, here.message_rank)
        self.count = 0

    @sm.endpoint
    def places(self) -> tuple[sm.Point, sm.Point, sm.Point, dict[str, int]]:
        here = sm.context()
        return here.message_rank, here.actor_instance.rank, sm.current_rank(), sm.current_size()

    @sm.endpoint
    def built(self) -> tuple[sm.Point, sm.Point]:
        return self.built_at

    @sm.endpoint
    def rank(self, factor: int = 1) -> int:
        self.count += 1
        return sm.context().proc_rank * factor

    @sm.endpoint
    def counted(self) -> int:
        return self.count

    @sm.endpoint
    def wait_for(self, path: str) -> int:
        while not os.path.exists(path):
            time.sleep(0.001)
        return sm.context().proc_rank

    @sm.endpoint
    def wait_unless(self, rank: int, path: str) -> int:
        while sm.context().proc_rank != rank and not os.path.exists(path):
            time.sleep(0.001)
        return sm.context().proc_rank

    @sm.endpoint
    def fail_on(self, rank: int) -> int:
        if sm.context().proc_rank == rank:
            raise ValueError(f"not on {rank}")
        return sm.context().proc_rank

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()


@pytest.fixture(scope="module")
def procs(hosts: sm.HostMesh, link_up) -> sm.ProcMesh:
    made = hosts.spawn_procs({"gpus": 2}, name="members")
    link_up(made.spawn("first", Member), "counted")
    return made


@pytest.fixture
def members(procs: sm.ProcMesh) -> sm.ActorMesh:
    return procs.spawn("members", Member)


def test_choose_asks_one_rank_and_keeps_its_rank_in_the_mesh(members):
    part = members.slice(hosts=1)
    seen = set()
    while len(seen) < 2:
        at, own, current, size = part.places.choose().get(60)
        assert at == current
        assert (size, own["hosts"], own["gpus"]) == ({"gpus": 2}, 1, at["gpus"])
        seen.add(at.rank)
    before = sum(members.counted.call().get(60).values())
    assert members.rank.choose(factor=10).get(60) in (0, 10, 20, 30)
    assert sum(members.counted.call().get(60).values()) == before + 1


def test_ranks_are_relative_to_what_was_called(members):
    for point, (at, own, _, size) in members.places.call().get(60):
        assert at == own == point
        assert size == {"hosts": 2, "gpus": 2}
    at, own, _, size = members.slice(hosts=1, gpus=0).places.call_one().get(60)
    assert (str(at), size, at.rank) == ("{}", {}, 0)
    assert str(own) == "{'hosts': 1/2, 'gpus': 0/2}"
    flat = members.flatten("all").slice(all=[3, 0]).places.call().get(60)
    assert [str(at) for at, *_ in flat.values()] == ["{'all': 0/2}", "{'all': 1/2}"]
    assert [own.rank for _, own, *_ in flat.values()] == [3, 0]


def test_an_actor_spawned_on_a_slice_has_its_ranks_there(procs):
    part = procs.slice(hosts=1).spawn("part", Member)
    answers = part.places.call().get(60)
    assert answers.sizes == {"gpus": 2}
    assert [(str(at), str(own)) for at, own, *_ in answers.values()] == [
        ("{'gpus': 0/2}", "{'gpus': 0/2}"),
        ("{'gpus': 1/2}", "{'gpus': 1/2}"),
    ]
    assert [str(own) for own, at in part.built.call().get(60).values() if own == at] == [
        "{'gpus': 0/2}",
        "{'gpus': 1/2}",
    ]
    one = part.slice(gpus=1).places.call_one().get(60)
    assert (str(one[0]), str(one[1])) == ("{}", "{'gpus': 1/2}")


def test_a_stream_gives_answers_as_they_come(members, tmp_path: Path):
    gate = tmp_path / "gate"
    stream = members.wait_unless.stream(2, str(gate))
    assert next(stream).get(60) == 2
    others = list(stream)
    assert not any(future.done() for future in others)
    gate.touch()
    assert sorted(future.get(60) for future in others) == [0, 1, 3]
    assert [future.get(60) for future in members.slice(hosts=0, gpus=1).rank.stream(5)] == [5]


def test_a_stream_can_be_awaited(members):
    async def collect() -> list[int]:
        return sorted([await future for future in members.rank.stream()])

    assert asyncio.run(collect()) == [0, 1, 2, 3]


def test_all_is_sent_at_the_call_though_nobody_looks_at_what_it_returns(members):
    members.rank.stream()
    members.rank.call()
    members.rank.choose()
    sm.Accumulator(members.rank, 0, operator.add).accumulate()
    assert sum(members.counted.call().get(60).values()) == 13


def test_an_error_in_a_stream_is_that_of_its_rank(members):
    values, errors = [], []
    for future in members.fail_on.stream(1):
        error = future.exception(60)
        if error is None:
            values.append(future.get())
        else:
            errors.append(error)
    assert sorted(values) == [0, 2, 3]
    (error,) = errors
    assert isinstance(error, ActorError)
    assert (error.rank, error.host) == (1, "local0")


def test_a_death_in_a_stream_is_that_of_its_rank(mortal, tmp_path: Path):
    members = mortal.spawn("members", Member)
    gate = tmp_path / "gate"
    members.pid.call().get(60)
    stream = list(members.wait_for.stream(str(gate)))
    mortal.send_signal(signal.SIGKILL, rank=3)
    assert isinstance(stream[0].exception(60), ProcDied)
    gate.touch()
    assert sorted(future.get(60) for future in stream[1:]) == [0, 1, 2]
    late = [future.exception(60) for future in members.rank.stream()]
    assert sum(error is None for error in late) == 3
    assert sum(isinstance(error, SupervisionError) for error in late) == 1


def test_an_accumulator_folds_the_results(members):
    ranks = sm.Accumulator(members.rank, [], lambda some, rank: [*some, rank])
    assert sorted(ranks.accumulate(2).get(60)) == [0, 2, 4, 6]
    assert sm.Accumulator(members.rank, 100, operator.add).accumulate().get(60) == 106
    with pytest.raises(ActorError, match="not on 3"):
        sm.Accumulator(members.fail_on, 0, operator.add).accumulate(3).get(60)
    with pytest.raises(ZeroDivisionError):
        sm.Accumulator(members.rank, 1, lambda value, rank: value // 0).accumulate().get(60)
    with pytest.raises(TypeError):
        sm.Accumulator(members.rank, 0, operator.add).accumulate(1, 2, 3)
    with pytest.raises(TypeError, match="takes an endpoint"):
        sm.Accumulator(print, 0, operator.add)  # type: ignore[arg-type]


def test_a_call_that_is_late_names_who_has_not_answered(members, tmp_path: Path):
    gate = tmp_path / "gate"
    error = late(members.wait_unless, lambda limited: limited.call(2, str(gate)), missing=3)
    assert f"within {error.seconds:g} s from ranks 0, 1, 3 (3 of 4)" in str(error)
    assert error.ranks == (0, 1, 3)
    gate.touch()
    assert members.rank.call().get(60).values() == [0, 1, 2, 3]
    gate.unlink()
    one = members.slice(hosts=1, gpus=1)
    for _ in range(2):  # by the hosts, and over a direct link
        expired = one.wait_for.options(timeout=0.05).call_one(str(gate))
        assert "from rank 3 (1 of 1)" in str(expired.exception(60))
        gate.touch()
        one.rank.call_one().get(60)
        gate.unlink()
    assert isinstance(expired.exception(60), CallTimeout)  # for good
    streams: list[list[sm.Future[int]]] = []

    def last_of_stream(limited: Any) -> sm.Future[int]:
        streams.append(list(limited.stream(1, str(gate))))
        return streams[-1][-1]

    late(members.wait_unless, last_of_stream, missing=3)
    assert streams[-1][0].get(60) == 1
    assert [type(future.exception(60)) for future in streams[-1][1:]] == [CallTimeout] * 3
    gate.touch()


def late(endpoint: Any, call: Any, missing: int) -> CallTimeout:
    """The error of a call with a deadline that those who answer at all have met."""
    for seconds in (0.05, 0.5, 5):
        error = call(endpoint.options(timeout=seconds)).exception(60)
        assert isinstance(error, CallTimeout)
        if len(error.ranks) == missing:
            return error
    raise AssertionError(f"{len(error.ranks)} did not answer within {seconds} s")


def test_a_deadline_that_is_met_does_nothing(members):
    limited = members.rank.options(timeout=60)
    assert limited.call().get(60).values() == [0, 1, 2, 3]
    assert limited.choose().get(60) in range(4)
    assert members.slice(hosts=0, gpus=1).rank.options(timeout=60).call_one(3).get(60) == 3
    assert members.rank.options(timeout=float("inf")).call().get(60).size() == 4
    for bad in (-1, float("nan")):
        with pytest.raises(UsageError, match="number of seconds"):
            members.rank.options(timeout=bad)


@pytest.mark.slow
def test_a_late_call_tells_who_died_and_a_dead_rank_is_no_timeout(mortal, tmp_path: Path):
    members = mortal.spawn("members", Member)
    gate = tmp_path / "gate"
    members.pid.call().get(60)
    part = members.slice(hosts=0).wait_for.options(timeout=2).call(str(gate))
    dead = members.wait_for.options(timeout=60).call(str(gate))
    mortal.send_signal(signal.SIGKILL, rank=3)
    assert isinstance(dead.exception(60), ProcDied)
    error = part.exception(60)
    assert isinstance(error, CallTimeout)
    assert [death.rank for death in error.deaths] == [3]
    assert "rank 3 of 'mortal' on local1" in str(error)
    assert "killed by SIGKILL" in str(error)
    gate.touch()


def test_the_earliest_deadline_expires_first(members, tmp_path: Path):
    gate = tmp_path / "gate"
    order: list[float] = []
    futures = []
    for seconds in (0.3, 0.1, 0.2):
        future = members.wait_for.options(timeout=seconds).call(str(gate))
        future.add_done_callback(lambda done: order.append(done.exception(0).seconds))
        futures.append(future)
    for future in futures:
        future.exception(60)
    gate.touch()
    assert order == [0.1, 0.2, 0.3]


def test_rref_says_that_there_is_none(members):
    with pytest.raises(UsageError, match="not built yet"):
        members.rank.rref()


def test_wrong_arguments_are_refused_before_anything_is_sent(members):
    for way in ("call", "choose", "stream", "broadcast"):
        with pytest.raises(TypeError):
            getattr(members.rank, way)(1, 2, 3)
        with pytest.raises(TypeError):
            getattr(members.rank, way)(wrong=1)
        with pytest.raises(UsageError, match="cannot be sent"):
            getattr(members.rank, way)(threading.Lock())
    assert members.counted.call().get(60).values() == [0] * 4


def test_get_in_a_running_loop_warns_and_works(members, tmp_path):
    go = tmp_path / "go"
    messages: list[str] = []

    def warned(message: Warning | str, *_where: Any) -> None:
        messages.append(str(message))
        go.touch()

    async def ask() -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = warned
            return members.wait_for.call(str(go)).get(60).values()

    value = asyncio.run(ask())
    assert value == [0, 1, 2, 3]
    assert any("running event loop" in message for message in messages)


def test_a_cancelled_task_leaves_the_remote_work_running(members, tmp_path: Path):
    gate = tmp_path / "gate"
    one = members.slice(hosts=0, gpus=0)

    async def cancel() -> None:
        future = one.wait_for.call_one(str(gate))
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(future, 0.01)

    asyncio.run(cancel())
    gate.touch()
    assert one.rank.call_one().get(60) == 0


def test_threads_and_tasks_share_a_future(members, tmp_path: Path):
    gate = tmp_path / "gate"
    future = members.wait_for.call(str(gate))
    got: list[list[int]] = []
    threads = [
        threading.Thread(target=lambda: got.append(future.get(60).values())) for _ in range(3)
    ]
    for thread in threads:
        thread.start()

    async def ask() -> list[list[int]]:
        tasks = [future.as_asyncio() for _ in range(2)]
        await asyncio.sleep(0)
        gate.touch()
        return [answer.values() for answer in await asyncio.gather(*tasks)]

    got += asyncio.run(ask())
    for thread in threads:
        thread.join()
    assert got == [[0, 1, 2, 3]] * 5

"""Actors on real procs of this machine: calls, errors, order, shapes, stop."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import slurmmesh as sm
from slurmmesh.errors import ActorError, MeshStopped, ProcDied, SupervisionError, UsageError


class Odd(Exception):
    """An exception that cannot be rebuilt from its arguments."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"odd {a} and {b}")


class NotAnException(BaseException):
    """What some frameworks unwind their tasks with."""


class Sample(sm.Actor):
    def __init__(self, start: int = 0) -> None:
        self.seen = [start]

    @sm.endpoint
    def add(self, value):
        self.seen.append(value)
        return len(self.seen)

    @sm.endpoint
    def history(self):
        return self.seen

    @sm.endpoint
    async def later(self, value):
        await asyncio.sleep(0)
        return value + 1

    @sm.endpoint
    def where(self):
        point = sm.current_rank()
        return point.rank, dict(point), sm.current_actor_name(), sm.current_size()

    @sm.endpoint
    def echo(self, *args, **kwargs):
        return args, kwargs

    @sm.endpoint
    def fail(self, kind):
        if kind == "odd":
            raise Odd(1, 2)
        if kind == "unpicklable":
            error = RuntimeError("holds a lock")
            error.lock = threading.Lock()
            raise error
        if kind == "cancelled":
            raise asyncio.CancelledError
        raise ValueError("plain words")

    @sm.endpoint
    async def cancelled(self):
        raise asyncio.CancelledError

    @sm.endpoint
    def unpicklable_result(self):
        return threading.Lock()

    @sm.endpoint
    def thread(self):
        return threading.current_thread() is threading.main_thread()

    @sm.endpoint
    def loop_is_visible(self):
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    @sm.endpoint
    def leave(self, code):
        raise SystemExit(code)

    @sm.endpoint
    def raise_now(self, name):
        raise {"stop": NotAnException, "generator": GeneratorExit}.get(name, KeyboardInterrupt)

    @sm.endpoint
    def fork(self, leave):
        pid = os.fork()
        if pid == 0 and leave:
            raise SystemExit(3)
        return os.waitpid(pid, 0)[1] if pid else None

    @sm.endpoint
    def many_arrays(self, count):
        return [np.full(2, index) for index in range(count)]

    @sm.endpoint
    def own_array(self):
        """An array of its own, which the next message changes."""
        self.array = np.zeros(4 << 20, dtype=np.uint8)
        return self.array

    @sm.endpoint
    def change_array(self):
        self.array[:] = 1

    @sm.endpoint
    def environment(self, name):
        return os.environ.get(name)


class Broken(sm.Actor):
    def __init__(self) -> None:
        if sm.current_rank().rank == 1:
            raise RuntimeError("no luck on one")

    @sm.endpoint
    def fine(self):
        return True


class Cleaner(sm.Actor):
    def __init__(self, path: str) -> None:
        self.path = path

    @sm.endpoint
    def busy(self, started: str, until: str) -> str:
        open(started, "w").close()
        while not os.path.exists(until):
            time.sleep(0.001)
        return "done"

    def __cleanup__(self, error: BaseException | None) -> None:
        with open(f"{self.path}.{sm.current_rank().rank}", "w") as file:
            file.write(repr(error))


@pytest.fixture(scope="module")
def hosts(outlives_tests, tmp_path_factory) -> Iterator[sm.HostMesh]:
    folder = tmp_path_factory.mktemp("job")
    made = sm.local_hosts(2, folder)
    with outlives_tests(folder):
        yield made
    made.stop()


@pytest.fixture
def procs(hosts: sm.HostMesh) -> Iterator[sm.ProcMesh]:
    # This module imports torch: once per host, not once per proc.
    made = hosts.spawn_procs({"gpus": 2}, name="sample", preload=["torch", "numpy"])
    yield made
    made.stop().get(20)


@pytest.fixture
def actors(procs: sm.ProcMesh) -> sm.ActorMesh:
    return procs.spawn("sample", Sample, 7)


def test_a_call_reaches_every_rank_and_answers_in_its_shape(actors):
    answers = actors.where.call().get(20)
    assert answers.sizes == {"hosts": 2, "gpus": 2}
    for point, (rank, coordinates, name, size) in answers:
        assert (rank, coordinates) == (point.rank, dict(point))
        assert name == "sample"
        assert size == {"hosts": 2, "gpus": 2}


def test_a_slice_is_called_alone_and_its_ranks_are_relative_to_it(actors):
    answers = actors.slice(hosts=1).where.call().get(20)
    assert [value[:2] for value in answers.values()] == [(0, {"gpus": 0}), (1, {"gpus": 1})]
    actors.slice(hosts=0, gpus=1).add.call_one(1).get(20)
    lengths = [len(seen) for seen in actors.history.call().get(20).values()]
    assert lengths == [1, 2, 1, 1]


def test_one_sender_is_heard_in_order_whatever_the_kind_of_message(actors):
    one = actors.slice(hosts=0, gpus=0)
    for value in range(100):
        if value % 3:
            one.add.broadcast(value)
        elif value % 2:
            one.add.call_one(value)
        else:
            actors.add.call(value)
    assert one.history.call_one().get(20) == [7, *range(100)]


def test_sync_and_async_endpoints_live_in_one_class(actors):
    assert set(actors.later.call(1).get(20).values()) == {2}
    assert set(actors.loop_is_visible.call().get(20).values()) == {False}


def test_a_call_can_be_awaited(actors):
    async def ask() -> int:
        return await actors.slice(hosts=0, gpus=0).later.call_one(4)

    assert asyncio.run(ask()) == 5


def test_the_first_actor_of_a_proc_has_the_main_thread_and_others_their_own(procs):
    first = procs.spawn("first", Sample)
    second = procs.spawn("second", Sample)
    assert set(first.thread.call().get(20).values()) == {True}
    assert set(second.thread.call().get(20).values()) == {False}


def test_a_long_endpoint_does_not_delay_another_actor_of_the_proc(procs, tmp_path):
    busy = procs.spawn("busy", Cleaner, str(tmp_path / "clean"))
    other = procs.spawn("other", Sample)
    started, until = tmp_path / "started", tmp_path / "until"
    running = busy.slice(hosts=0, gpus=0).busy.call_one(str(started), str(until))
    assert set(other.later.call(1).get(20).values()) == {2}
    assert not running.done()
    until.touch()
    assert running.get(20) == "done"


def test_tensors_arrays_and_large_bytes_go_there_and_back(actors):
    one = actors.slice(hosts=1, gpus=1)
    tensor = torch.arange(1 << 20, dtype=torch.float32)
    args, kwargs = one.echo.call_one(tensor, b"x" * (5 << 20), array=np.eye(3)).get(30)
    assert torch.equal(args[0], tensor)
    assert args[1] == b"x" * (5 << 20)
    assert np.array_equal(kwargs["array"], np.eye(3))


def test_an_exception_comes_with_its_type_text_traceback_and_rank(actors):
    with pytest.raises(ActorError, match="plain words") as caught:
        actors.slice(hosts=1, gpus=0).fail.call_one("plain").get(20)
    error = caught.value
    assert isinstance(error.exception, ValueError)
    assert (error.actor, error.rank, error.host) == ("sample", 2, "local1")
    assert "in fail" in error.exception_formatted
    assert actors.add.call(1).get(20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "words"), [("odd", "odd 1 and 2"), ("unpicklable", "holds a lock")]
)
def test_an_exception_that_cannot_travel_keeps_its_text(actors, kind: str, words: str):
    with pytest.raises(ActorError, match=words):
        actors.slice(hosts=0, gpus=0).fail.call_one(kind).get(20)
    assert actors.add.call(1).get(20)


def test_a_cancelled_async_endpoint_fails_its_call_alone(actors):
    one = actors.slice(hosts=0, gpus=0)
    with pytest.raises(ActorError, match="cancelled"):
        one.cancelled.call_one().get(20)
    assert one.later.call_one(1).get(20) == 2


def test_an_unpicklable_result_fails_its_call_alone(actors):
    one = actors.slice(hosts=0, gpus=0)
    with pytest.raises(ActorError, match="cannot be sent"):
        one.unpicklable_result.call_one().get(20)
    assert one.add.call_one(1).get(20) == 2


def test_what_is_wrong_at_the_caller_is_said_before_anything_is_sent(actors, procs):
    with pytest.raises(TypeError):
        actors.add.call(1, 2, 3)
    with pytest.raises(ValueError, match="slice it"):
        actors.add.call_one(1)
    with pytest.raises(AttributeError, match="it has add"):
        _ = actors.missing
    with pytest.raises(UsageError, match="cannot be sent"):
        actors.echo.call(threading.Lock())
    with pytest.raises(TypeError):
        procs.spawn("sample", Sample, 1, 2, 3)
    with pytest.raises(TypeError, match="not a class derived"):
        procs.spawn("sample", dict)
    assert actors.history.call().get(20).item(hosts=0, gpus=0) == [7]


def test_an_endpoint_may_not_take_the_name_of_something_a_mesh_has(procs, actors):
    names = ["slice", *vars(actors)]
    assert "name" in names
    for name in names:
        clash = type("Clash", (sm.Actor,), {name: sm.endpoint(lambda self: None)})
        with pytest.raises(ValueError, match=f"rename the endpoint '{name}'"):
            procs.spawn("clash", clash)


def test_a_constructor_that_fails_on_one_rank_leaves_the_others_usable(procs):
    broken = procs.spawn("broken", Broken)
    with pytest.raises(ActorError, match="no luck on one"):
        broken.initialized.get(20)
    with pytest.raises(SupervisionError, match="no luck on one"):
        broken.fine.call().get(20)
    assert broken.slice(hosts=1).fine.call().get(20).item(gpus=0) is True


def test_a_broadcast_that_raises_fails_the_actor(actors):
    one = actors.slice(hosts=0, gpus=0)
    one.fail.broadcast("plain")
    with pytest.raises(SupervisionError, match="plain words"):
        one.add.call_one(1).get(20)
    assert actors.slice(hosts=1).add.call(1).get(20)


def test_an_actor_that_leaves_ends_its_proc_with_that_code(actors):
    with pytest.raises(ProcDied) as caught:
        actors.slice(hosts=0, gpus=0).leave.call_one(3).get(20)
    assert caught.value.cause.exit_code == 3
    with pytest.raises(ProcDied):
        actors.add.call(1).get(20)
    assert actors.slice(hosts=1).add.call(1).get(20)


def test_a_proc_knows_its_rank_by_the_usual_names(hosts):
    procs = hosts.spawn_procs({"gpus": 2}, name="env", env={"MY_NAME": "a b"})
    actors = procs.spawn("env", Sample)
    for name, values in {
        "RANK": ["0", "1", "2", "3"],
        "LOCAL_RANK": ["0", "1", "0", "1"],
        "WORLD_SIZE": ["4"] * 4,
        "MY_NAME": ["a b"] * 4,
    }.items():
        assert list(actors.environment.call(name).get(20).values()) == values
    procs.stop().get(20)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + 20
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_stop_ends_the_running_message_drops_the_queue_and_cleans_up(hosts, tmp_path):
    procs = hosts.spawn_procs(name="cleaner")
    actors = procs.spawn("cleaner", Cleaner, str(tmp_path / "clean"))
    started, until = tmp_path / "started", tmp_path / "until"
    assert procs.spawn("idle", Cleaner, str(tmp_path / "idle")).initialized.get(20)
    one = actors.slice(hosts=1)
    running = one.busy.call_one(str(started), str(until))
    queued = one.busy.call_one(str(started), str(tmp_path / "never"))
    wait_for(started)
    stopped = procs.stop(grace_s=60)
    # The idle actor of the same proc ends at once: then the busy one has been told to stop, too.
    wait_for(tmp_path / "idle.1")
    until.touch()
    assert running.get(20) == "done"
    stopped.get(20)
    with pytest.raises(MeshStopped):
        queued.get(20)
    with pytest.raises(MeshStopped):
        actors.busy.call("a", "b").get(20)
    with pytest.raises(MeshStopped):
        actors.busy.broadcast("a", "b")
    written = sorted(path.name for path in tmp_path.glob("clean.*"))
    assert written == ["clean.0", "clean.1"]
    assert (tmp_path / "clean.0").read_text() == "None"


def test_stop_kills_what_does_not_end_in_its_grace(hosts, tmp_path):
    procs = hosts.spawn_procs(name="stubborn")
    actors = procs.spawn("stubborn", Cleaner, str(tmp_path / "clean"))
    running = actors.busy.call(str(tmp_path / "started"), str(tmp_path / "never"))
    procs.stop(grace_s=0.05).get(20)
    with pytest.raises(MeshStopped):
        running.get(20)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stop", "generator"])
def test_what_is_no_exception_fails_its_call_alone_on_any_thread(procs, name):
    for actors in (procs.spawn("first", Sample), procs.spawn("second", Sample)):
        one = actors.slice(hosts=0, gpus=0)
        assert isinstance(one.raise_now.call_one(name).exception(20), ActorError)
        assert one.add.call_one(1).get(20) == 2


def test_an_interrupt_ends_the_proc_on_any_thread(procs):
    for place, name in enumerate(["first", "second"]):
        actors = procs.spawn(name, Sample).slice(hosts=0, gpus=place)
        error = actors.raise_now.call_one("interrupt").exception(20)
        assert isinstance(error, ProcDied)
        assert "KeyboardInterrupt" in str(error)


def test_a_child_that_an_endpoint_forked_does_not_speak_for_the_actor(procs, tmp_path):
    actors = procs.spawn("cleaner", Cleaner, str(tmp_path / "clean"))
    forking = procs.spawn("forking", Sample)
    assert set(forking.fork.call(leave=False).get(20).values()) == {0}
    assert set(forking.fork.call(leave=True).get(20).values()) == {3 << 8}
    assert not list(tmp_path.glob("clean*"))
    assert actors.size() == 4


@pytest.mark.slow
def test_more_arrays_than_a_frame_has_places_for(actors):
    back = actors.slice(hosts=0, gpus=0).many_arrays.call_one(70_000).get(60)
    assert len(back) == 70_000
    assert all(array[1] == index for index, array in enumerate(back))


def test_what_was_sent_may_be_changed_afterwards(actors):
    one = actors.slice(hosts=0, gpus=0)
    mine = np.zeros(8 << 20, dtype=np.uint8)
    sent = one.echo.call_one(mine)
    mine[:] = 1
    assert not sent.get(30)[0][0].any()
    theirs = one.own_array.call_one()
    one.change_array.call_one()
    assert not theirs.get(30).any()


def test_bad_arguments_are_refused_at_the_sender(procs, actors):
    with pytest.raises(UsageError, match="cannot be sent"):
        procs.spawn("sample", Sample, threading.Lock())
    with pytest.raises(UsageError, match="no signal 999"):
        procs.send_signal(999)
    with pytest.raises(IndexError):
        procs.send_signal(signal.SIGTERM, rank=-1)
    for grace in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UsageError, match="grace_s"):
            procs.stop(grace)
    assert len(actors.add.call(1).get(20)) == 4


def test_a_traceback_names_the_file_of_code_that_travelled_by_value(hosts):
    class Local(sm.Actor):
        @sm.endpoint
        def fail(self):
            raise ValueError("here")

    procs = hosts.slice(hosts=0).spawn_procs(name="local")
    with pytest.raises(ActorError, match=r"test_actors\.py") as caught:
        procs.spawn("local", Local).fail.call_one().get(20)
    assert 'raise ValueError("here")' in caught.value.exception_formatted
    procs.stop().get(20)

"""Actors that call actors: past the controller, on one host and between hosts; deaths, cycles."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import slurmmesh as sm
from slurmmesh.errors import ActorError, CallTimeout, MeshStopped, ProcDied, SupervisionError
from slurmmesh.hosts.controller import Controller
from slurmmesh.shape import Extent, Region

pytestmark = pytest.mark.slow


class Callee(sm.Actor):
    def __init__(self, start: int = 0) -> None:
        self.count = start

    @sm.endpoint
    def add(self, value: int) -> int:
        self.count += value
        return self.count

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def wait_for(self, path: str) -> int:
        Path(path).touch()
        time.sleep(3600)
        return os.getpid()

    @sm.endpoint
    def fail(self) -> None:
        raise ValueError("as it should")


class Holder(sm.Actor):
    """Holds up who calls ``hold``, until another opens the pipe."""

    def __init__(self) -> None:
        self.kept: list[int] = []

    @sm.endpoint
    def hold(self, path: str) -> None:
        with open(path):
            pass

    @sm.endpoint
    def keep(self, number: int) -> None:
        self.kept.append(number)

    @sm.endpoint
    def all(self) -> list[int]:
        return self.kept


def keep_beside_a_long_call(holder: Any, keeper: Any, path: str) -> tuple[bool, bool]:
    """Whether ``keeper`` has a direct link before the first call to its proc is answered, and
    whether it has kept what it was told in order."""
    os.mkfifo(path)
    long = holder.hold.call_one(path)
    number, end = 0, time.monotonic() + 60
    while keeper.keep._place is None or keeper.keep._place.direct is None:
        keeper.keep.broadcast(number)
        keeper.keep.call_one(number + 1).get(60)
        number += 2
        if time.monotonic() > end:
            return False, False
    is_early = not long.done()
    keeper.keep.broadcast(number)
    with open(path, "w"):
        long.get(60)
    return is_early, keeper.all.call_one().get(60) == list(range(number + 1))


class Caller(sm.Actor):
    @sm.endpoint
    def keep_beside_a_long_call(self, holder: Any, keeper: Any, path: str) -> tuple[bool, bool]:
        return keep_beside_a_long_call(holder, keeper, path)

    @sm.endpoint
    def pid(self) -> int:
        return os.getpid()

    @sm.endpoint
    def sum_of(self, other: Any, times: int) -> list[int]:
        return [other.add.call_one(1).get(30) for _ in range(times)]

    @sm.endpoint
    def add_all(self, mesh: Any, value: int) -> list[int]:
        return list(mesh.add.call(value).get(30).values())

    @sm.endpoint
    async def add_async(self, other: Any, value: int) -> int:
        return await other.add.call_one(value)

    @sm.endpoint
    def is_direct(self, other: Any) -> bool:
        other.add.call_one(0).get(30)
        return other.add._place.direct is not None

    @sm.endpoint
    def build(self, procs: Any, start: int) -> Any:
        return procs.spawn("built", Callee, start)

    @sm.endpoint
    def told(self, other: Any, method: str, *args: Any) -> tuple[str, BaseException]:
        """The error that the caller's own caller would get, as a value."""
        try:
            getattr(other, method).call_one(*args).get(30)
        except Exception as error:
            return type(error).__name__, error
        raise AssertionError("it did not fail")

    @sm.endpoint
    def pass_on(self, between: Any, other: Any, value: int) -> list[int]:
        return next(iter(between.add_all.call(other, value).get(30).values()))

    @sm.endpoint
    def end(self, procs: Any) -> None:
        procs.stop(1.0).get(30)


class Mirror(sm.Actor):
    """Calls back while it is called."""

    def __init__(self) -> None:
        self.calls = 0

    @sm.endpoint
    def there_and_back(self, me: Any, other: Any, timeout: float) -> int:
        return other.back.options(timeout=timeout).call_one(me, timeout / 2).get()

    @sm.endpoint
    def back(self, to: Any, timeout: float) -> int:
        return to.seen.options(timeout=timeout).call_one().get()

    @sm.endpoint
    async def there_and_back_async(self, me: Any, other: Any) -> int:
        return await other.back.call_one(me, 30)

    @sm.endpoint
    def seen(self) -> int:
        self.calls += 1
        return self.calls


class Open(Mirror):
    """Goes on with other messages while it waits for an answer."""

    @sm.concurrent_endpoint
    async def there_and_back_beside(self, me: Any, other: Any) -> int:
        return await other.back.call_one(me, 30)


_DIAL = """\
import sys
from slurmmesh.hosts.remote_agent import DialSpec, dial
sys.exit(dial(DialSpec((("127.0.0.1", int(sys.argv[1])),), sys.argv[2], sys.argv[3])))
"""


def dialled_hosts(folder: Path, count: int) -> Iterator[sm.HostMesh]:
    """Hosts that come over TCP, as those of an allocation do."""
    controller = Controller("test", None)
    port = controller.roster.listen("127.0.0.1")
    records = [controller.roster.add_host(f"dialled-{index}") for index in range(count)]
    agents = []
    try:
        for record in records:
            identity = folder / record.identity
            controller.roster.authority.issue(record.identity).write(identity)
            command = [sys.executable, "-c", _DIAL, str(port), str(identity), record.identity]
            agents.append(subprocess.Popen(command, stdin=subprocess.DEVNULL))
        controller.roster.wait_ready(records, 60)
        yield sm.HostMesh(controller.runtime, Region(Extent.of({"hosts": count})))
    finally:
        controller.close()
        for agent in agents:
            agent.wait(30)


@pytest.fixture(scope="module", params=["local", "tls"])
def hosts(request, tmp_path_factory, outlives_tests) -> Iterator[sm.HostMesh]:
    """Two hosts, on one machine with unix sockets or over TCP with TLS."""
    folder = tmp_path_factory.mktemp(request.param)
    with outlives_tests(folder):
        if request.param == "tls":
            yield from dialled_hosts(folder, 2)
        else:
            made = sm.local_hosts(2, folder)
            yield made
            made.stop()


@pytest.fixture(scope="module")
def hosts_meet(hosts) -> bool:
    """Whether a proc can reach one of another host: not over the unix sockets of one machine."""
    return hosts.spawn_procs(name="asked").hosts[0].startswith("dialled")


@pytest.fixture(scope="module")
def pair(hosts, link_up) -> tuple[Any, Any]:
    """A mesh of callees and one of callers, one of each on each host."""
    callees = hosts.spawn_procs(name="callees").spawn("callee", Callee)
    callers = hosts.spawn_procs(name="callers").spawn("caller", Caller)
    for mesh in (callees, callers):
        link_up(mesh, "pid")
    return callees, callers


@pytest.mark.parametrize("host", [0, 1])
def test_an_actor_calls_one_on_its_own_host_and_one_on_another(pair, host):
    callees, callers = pair
    callee, caller = callees.slice(hosts=host), callers.slice(hosts=0)
    before = callee.add.call_one(0).get(30)
    counts = caller.sum_of.call_one(callee, 50).get(30)
    assert counts == list(range(before + 1, before + 51))


def test_calls_between_actors_take_a_direct_link_where_there_can_be_one(
    hosts_meet, pair, wait_until
):
    callees, callers = pair
    wait_until(lambda: callers.slice(hosts=0).is_direct.call_one(callees.slice(hosts=0)).get(30))
    if hosts_meet:
        wait_until(
            lambda: callers.slice(hosts=0).is_direct.call_one(callees.slice(hosts=1)).get(30)
        )


@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("is_actor", [False, True])
def test_a_long_first_call_does_not_keep_the_direct_link_from_others(
    hosts, hosts_meet, pair, tmp_path, host, is_actor
):
    if is_actor and not hosts_meet:  # there are no direct links to the other
        host = 0
    procs = hosts.slice(hosts=host).spawn_procs(name="held")
    holder, keeper = procs.spawn("holder", Holder), procs.spawn("keeper", Holder)
    path = str(tmp_path / "pipe")
    if is_actor:
        caller = pair[1].slice(hosts=0)
        found = caller.keep_beside_a_long_call.call_one(holder, keeper, path).get(90)
    else:
        found = keep_beside_a_long_call(holder, keeper, path)
    assert found == (True, True)
    procs.stop().get(60)


def test_an_actor_calls_a_whole_mesh_and_one_that_calls_another(pair):
    callees, callers = pair
    before = list(callees.add.call(0).get(30).values())
    assert callers.slice(hosts=1).add_all.call_one(callees, 1).get(30) == [n + 1 for n in before]
    other = callers.slice(hosts=1)
    assert callers.slice(hosts=0).pass_on.call_one(other, callees, 1).get(30) == [
        n + 2 for n in before
    ]
    assert callers.slice(hosts=0).add_async.call_one(callees.slice(hosts=1), 1).get(30) == (
        before[1] + 3
    )


def test_an_actor_builds_another_in_a_mesh_it_was_given(hosts, pair):
    procs = hosts.spawn_procs(name="room")
    built = pair[1].slice(hosts=0).build.call_one(procs, 40).get(30)
    assert list(built.add.call(2).get(30).values()) == [42, 42]
    assert pair[1].slice(hosts=1).sum_of.call_one(built.slice(hosts=0), 1).get(30) == [43]
    procs.stop(1.0).get(30)


def test_an_error_goes_through_an_actor_that_calls(pair):
    callees, callers = pair
    name, error = callers.slice(hosts=0).told.call_one(callees.slice(hosts=1), "fail").get(30)
    assert name == "ActorError"
    assert isinstance(error, ActorError)
    assert "as it should" in str(error)
    assert isinstance(error.exception, ValueError)


@pytest.mark.parametrize("host", [0, 1])
@pytest.mark.parametrize("warm", [True, False])
def test_a_callee_that_dies_is_told_to_an_actor_with_its_cause(
    hosts, hosts_meet, pair, tmp_path, wait_until, host, warm
):
    procs = hosts.spawn_procs(name="victims")
    victims = procs.spawn("victim", Callee)
    victim, caller = victims.slice(hosts=host), pair[1].slice(hosts=0)
    pid = victim.pid.call_one().get(30)
    if warm and (host == 0 or hosts_meet):
        wait_until(lambda: caller.is_direct.call_one(victim).get(30))
    reached = tmp_path / "reached"
    told = caller.told.call_one(victim, "wait_for", str(reached))
    wait_until(reached.exists)
    os.kill(pid, signal.SIGKILL)
    name, error = told.get(30)
    assert name == "ProcDied"
    assert isinstance(error, ProcDied)
    assert (error.cause.rank, error.cause.signal, error.cause.pid) == (host, signal.SIGKILL, pid)
    # It stays so, and the other rank answers.
    assert caller.told.call_one(victim, "add", 1).get(30)[0] == "ProcDied"
    other = victims.slice(hosts=1 - host)
    assert caller.sum_of.call_one(other, 1).get(30) == [1]
    procs.stop(1.0).get(30)
    name, error = caller.told.call_one(other, "add", 1).get(30)
    assert isinstance(error, SupervisionError)


@pytest.mark.parametrize("host", [0, 1])
def test_a_callee_that_is_restarted_is_reached_by_actors_under_the_same_reference(
    hosts, hosts_meet, pair, wait_until, host
):
    rules = sm.Supervision(max_restarts=5, within_s=60)
    procs = hosts.spawn_procs(name="phoenixes", supervise=rules)
    actors = procs.spawn("phoenix", Callee, 10)
    one, caller = actors.slice(hosts=host), pair[1].slice(hosts=0)
    reachable = host == 0 or hosts_meet
    for _ in range(2):
        assert caller.sum_of.call_one(one, 2).get(30) == [11, 12]
        if reachable:
            wait_until(lambda: caller.is_direct.call_one(one).get(30))
        os.kill(one.pid.call_one().get(30), signal.SIGKILL)

        def is_back() -> bool:
            try:
                return one.add.call_one(0).get(30) == 10
            except ProcDied:
                return False

        wait_until(is_back)
    procs.stop(1.0).get(30)


def test_an_actor_that_uses_a_mesh_that_was_stopped_is_told_so(hosts, pair):
    procs = hosts.spawn_procs(name="stopped")
    actors = procs.spawn("stopped", Callee)
    caller = pair[1].slice(hosts=0)
    assert caller.sum_of.call_one(actors.slice(hosts=0), 1).get(30) == [1]
    pair[1].slice(hosts=1).end.call_one(procs).get(30)
    for host in (0, 1):
        name, error = caller.told.call_one(actors.slice(hosts=host), "add", 1).get(30)
        assert isinstance(error, MeshStopped), (name, error)


def test_two_actors_that_wait_for_each_other_end_by_their_deadlines(hosts):
    procs = hosts.spawn_procs(name="mirrors")
    mirrors = procs.spawn("mirror", Mirror)
    first, second = mirrors.slice(hosts=0), mirrors.slice(hosts=1)
    with pytest.raises(ActorError) as caught:
        first.there_and_back.call_one(first, second, 1.0).get(30)
    assert "CallTimeout" in str(caught.value)
    assert "mirror.seen gave no answer within 0.5 s from rank 0" in str(caught.value)
    # The call that nobody waited for any more was handled all the same, once.
    assert first.seen.call_one().get(30) == 2
    assert isinstance(caught.value.exception, (ActorError, CallTimeout))
    procs.stop(1.0).get(30)


def test_an_actor_with_a_concurrent_endpoint_can_be_called_back_meanwhile(hosts):
    procs = hosts.spawn_procs(name="open")
    actors = procs.spawn("open", Open)
    first, second = actors.slice(hosts=0), actors.slice(hosts=1)
    assert first.there_and_back_beside.call_one(first, second).get(30) == 1
    procs.stop(1.0).get(30)

"""A forked child has no part in its parent's calls: a typed error, never a hang."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

import slurmmesh as sm
from slurmmesh.errors import SupervisionError


def in_child(act: Callable[[], object]) -> str:
    """What ``act`` raises in a forked child: the class and the text."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            act()
            said = "nothing was raised"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, encoding="utf-8") as said_there:
        return said_there.read()


class Forker(sm.Actor):
    @sm.endpoint
    def echo(self, value):
        return value

    @sm.endpoint
    def call_in_child(self, other):
        return in_child(lambda: other.echo.call_one(1).get(20))


@pytest.fixture
def forkers(tmp_path) -> Iterator[sm.ActorMesh]:
    hosts = sm.local_hosts(1, tmp_path)
    yield hosts.spawn_procs({"gpus": 2}, name="forkers").spawn("forker", Forker)
    hosts.stop()


@pytest.mark.slow
def test_calls_and_answers_under_way_are_no_business_of_a_forked_child(forkers):
    one = forkers.slice(gpus=0)
    one.echo.call_one(0).get(20)
    asked = [one.echo.call_one(1), forkers.echo.call(1)]
    waiting: sm.Future[int] = sm.Future("an answer")
    for act in (
        lambda: one.echo.call_one(2),
        lambda: forkers.echo.broadcast(2),
        lambda: waiting.get(20),
    ):
        assert in_child(act).startswith(SupervisionError.__name__)
    assert one.call_in_child.call_one(forkers.slice(gpus=1)).get(30).startswith("SupervisionError")
    assert [future.get(20) is not None for future in asked] == [True, True]

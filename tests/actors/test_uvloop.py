"""Programs that run uvloop await futures like others, if it is installed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.errors import ActorError

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

pytestmark = pytest.mark.slow

uvloop.new_event_loop().close()  # libuv makes a pipe once in a process, and keeps it


class Echo(sm.Actor):
    @sm.endpoint
    def echo(self, value: int) -> int:
        return value

    @sm.endpoint
    def fail(self) -> None:
        raise ValueError("as it should")

    @sm.endpoint
    def with_uvloop(self, other: sm.ActorMesh) -> int:
        """Run a loop of its own in an actor."""

        async def ask() -> int:
            return sum(await asyncio.gather(*(other.echo.call_one(n) for n in range(10))))

        return uvloop.new_event_loop().run_until_complete(ask())


def test_futures_are_awaited_in_uvloop(tmp_path: Path):
    hosts = sm.local_hosts(1, tmp_path)
    mesh = hosts.spawn_procs({"n": 2}).spawn("echo", Echo)
    first, second = mesh.slice(n=0), mesh.slice(n=1)

    async def ask() -> None:
        for number in range(100):
            assert await first.echo.call_one(number) == number
        both = await asyncio.gather(mesh.echo.call(1), second.echo.call_one(2))
        assert (list(both[0].values()), both[1]) == ([1, 1], 2)
        with pytest.raises(ActorError, match="as it should"):
            await first.fail.call_one()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(sm.Channel.open()[1].recv(), 0.1)

    loop = uvloop.new_event_loop()
    loop.run_until_complete(ask())
    loop.close()
    assert first.with_uvloop.call_one(second).get(30) == 45
    hosts.stop()

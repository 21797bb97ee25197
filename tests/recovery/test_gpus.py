"""Each process of a run sees its own GPUs, also after its death. The masks are there, no GPU is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import cloudpickle
import pytest

import slurmmesh as sm
from slurmmesh.errors import UsageError
from slurmmesh.hosts.masks import ROCR, VARIABLES
from tests.recovery import programs

cloudpickle.register_pickle_by_value(programs)
pytestmark = [pytest.mark.slow]


@pytest.fixture(scope="module")
def hosts(
    outlives_tests: Callable[[Path], AbstractContextManager[None]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[sm.HostMesh]:
    """Two, which see three GPUs each."""
    folder = tmp_path_factory.mktemp("gpus")
    with pytest.MonkeyPatch.context() as patch, outlives_tests(folder):
        for name in VARIABLES:
            patch.delenv(name, raising=False)
        patch.setenv(ROCR, "4,5,7")
        made = sm.local_hosts(2, folder)
        yield made
        made.stop()


def test_each_process_sees_its_own_gpus(hosts: sm.HostMesh) -> None:
    """Two replicas on each host; one dies, and is started again."""
    result = sm.recovery.train(programs.masked, hosts=hosts, replicas=4, gpus_per_proc=1)
    assert (result.deaths, result.recovered) == (1, 1)
    assert result.values == tuple(({ROCR: device}, 0) for device in "4545")


def test_more_than_there_are_is_refused(hosts: sm.HostMesh) -> None:
    row = hosts.slice(hosts=0)
    with pytest.raises(UsageError, match=r"it sees 3 GPUs .* and 4 are wanted"):
        sm.recovery.train(programs.masked, hosts=row, replicas=2, gpus_per_proc=2)
    with pytest.raises(UsageError, match="gpus_per_proc is a number of GPUs"):
        sm.recovery.train(programs.masked, hosts=row, gpus_per_proc="1")  # type: ignore[arg-type]


def test_without_the_argument_they_are_told_which_to_use(hosts: sm.HostMesh) -> None:
    result = sm.recovery.train(programs.masked, hosts=hosts, replicas=4)
    assert result.values == tuple(({ROCR: "4,5,7"}, number) for number in (0, 1, 0, 1))

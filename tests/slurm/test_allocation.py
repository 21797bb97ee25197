"""The allocation, from the environment of a job."""

from __future__ import annotations

import pytest

from slurmmesh.errors import HostListError, SetupError
from slurmmesh.slurm.allocation import Allocation

ENVIRON = {
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1-3]",
    "SLURM_JOB_CPUS_PER_NODE": "64(x2),32",
    "SLURMD_NODENAME": "n1",
}


def test_reads_the_environment() -> None:
    assert Allocation.from_env(ENVIRON) == Allocation("12", ("n1", "n2", "n3"), (64, 64, 32), "n1")


@pytest.mark.parametrize(
    ("told", "cpus"), [("4(x3)", (4, 4, 4)), ("64(x2),32", (64, 64, 32)), ("", (1, 1, 1))]
)
def test_what_each_node_has(told: str, cpus: tuple[int, ...]) -> None:
    assert Allocation.from_env({**ENVIRON, "SLURM_JOB_CPUS_PER_NODE": told}).cpus == cpus


def test_outside_of_an_allocation() -> None:
    with pytest.raises(SetupError, match=r"slurmmesh\.submit"):
        Allocation.from_env({})
    with pytest.raises(HostListError):
        Allocation.from_env({**ENVIRON, "SLURM_JOB_NODELIST": "n[1-"})

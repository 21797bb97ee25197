from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def test_sacct_knows_a_job_after_its_end(wait_until: Callable[..., None]) -> None:
    with Lab(2, accounting=True) as lab:
        root = lab.root
        assert lab.run("sacctmgr", "-nP", "show", "cluster", "format=cluster").stdout == "lab\n"
        job = lab.run("sbatch", "--parsable", "-o/dev/null", "--wrap", "exit 3").stdout.strip()
        ask = ("sacct", "-nPX", "-j", job, "-o", "state,exitcode")
        wait_until(lambda: lab.run(*ask).stdout == "FAILED|3:0\n", "sacct knows the job's end")
        assert (root / "etc" / "slurmdbd.conf").stat().st_mode & 0o077 == 0
        assert str(root / "run" / "db.sock") in Path("/proc/net/unix").read_text()
    assert not os.path.exists(root)

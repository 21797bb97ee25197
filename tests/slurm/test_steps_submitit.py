"""A submitit user's script, unchanged but for the cluster's name: in an allocation and on Slurm."""

from __future__ import annotations

import json
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("submitit_script.py")

pytestmark = [pytest.mark.slurm, pytest.mark.slow]


def run(lab: Lab, folder: Path, cluster: str, *inside: str) -> dict[str, Any]:
    folder.mkdir()
    shutil.copy(SCRIPT, folder / "script.py")
    done = lab.run(
        *(*inside, sys.executable, "script.py", cluster),
        cwd=folder,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_it_runs_in_an_allocation_as_it_does_on_slurm(lab: Lab, tmp_path: Path) -> None:
    salloc = ("salloc", "--quiet", "--nodes=2", "--ntasks-per-node=2", "--cpus-per-task=2")
    with ThreadPoolExecutor() as both:  # much of either is waiting
        inside = both.submit(run, lab, tmp_path / "steps", "slurmmesh", *salloc)
        outside = both.submit(run, lab, tmp_path / "jobs", "slurm")
    steps, jobs = inside.result(), outside.result()
    assert steps["training"] == {"epochs": 5, "attempts": 2}
    assert steps["careful"] == "went on after careful"
    # The script gives Slurm another number than the default; the cluster's name is in its name.
    assert (steps.pop("timeouts left"), jobs.pop("timeouts left")) == (2, 1)
    assert steps == jobs

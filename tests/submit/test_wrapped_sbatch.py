"""submit where a site has put a script around sbatch."""

from __future__ import annotations

from typing import Any

import pytest

from slurmmesh.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

HELD = "--sbatch=--hold"
REAL = 'id=$(/usr/bin/sbatch "$@") || exit'


def wrap(slurm: Any, text: str) -> str:
    """A PATH on which sbatch is this script."""
    folder = slurm.folder / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(f"#!/bin/bash\n{text}\n")
    (folder / "sbatch").chmod(0o755)
    return f"{folder}:{slurm.environ['PATH']}"


def queue(lab: Lab) -> list[str]:
    return lab.run("squeue", "-h", "-t", "PD,R", "-o", "%i").stdout.split()


@pytest.mark.parametrize(
    ("wrapper", "warning"),
    [
        ("echo '*** Welcome ***'; echo 2026; echo 'be warned' >&2; " + REAL + "; echo $id; echo 7",
         "be warned"),
        (REAL + "; echo Submitted batch job $id", ""),
        (REAL + "; echo $id >&2", ""),
        (REAL + "; sleep 1; echo $id", ""),
        (REAL + "; echo $id; exit 1", "sbatch ended with code 1, but Slurm has the job"),
        (REAL + "; echo $id; kill -9 $$", "sbatch was killed by SIGKILL, but Slurm has the job"),
    ],
    ids=["banners", "sentence", "stderr", "slow", "fails late", "is killed"],
)  # fmt: skip
def test_the_job_is_found(slurm: Any, lab: Lab, wrapper: str, warning: str) -> None:
    done = slurm.run("--parsable", HELD, slurm.script(""), PATH=wrap(slurm, wrapper))
    assert done.returncode == 0, done.stderr
    assert [done.stdout.strip()] == queue(lab)
    assert warning in done.stderr


@pytest.mark.parametrize(
    ("wrapper", "told", "jobs"),
    [
        ("/usr/bin/sbatch -p nowhere \"$@\"; exit 0", "Invalid partition name specified", 0),
        ("echo 'sbatch: error: no coffee left' >&2; exit 1", "Slurm said: no coffee left", 0),
        ("exit 1", "the job may or may not be in the queue", 0),
        (REAL + "; echo done", "the job may or may not be in the queue", 1),
        (REAL + "; kill -9 $$", "the job may or may not be in the queue", 1),
    ],
    ids=["hides a failure", "has rules", "is mute", "hides the id", "is killed"],
)  # fmt: skip
def test_there_is_no_job_or_nobody_knows(
    slurm: Any, lab: Lab, wrapper: str, told: str, jobs: int
) -> None:
    done = slurm.run("--parsable", HELD, slurm.script(""), PATH=wrap(slurm, wrapper))
    assert done.returncode == 3, done.stderr
    assert told in done.stderr
    assert ("squeue --me" in done.stderr) == ("may or may not" in done.stderr)
    assert done.stdout == ""
    assert len(queue(lab)) == jobs

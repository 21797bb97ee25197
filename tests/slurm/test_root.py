"""Job folders of a cluster set up anew: an earlier job's is kept, the new job has its own."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.root import EarlierJobs, prepare_root

NOBODY = 65534


def make(root: Path, *names: str) -> None:
    """Files of earlier jobs; all are an hour old, and so are the folders."""
    when = time.time() - 3600
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("{}")
    for path in [*root.rglob("*"), root]:
        os.utime(path, (when, when))


def names(root: Path) -> list[str]:
    """With the time that is in the name of what was moved aside left out."""
    return sorted(path.name.partition("-")[0] for path in root.iterdir())


def start(root: Path, job_id: str) -> None:
    """Let a job's script run here, up to where it becomes the controller, for which ``true`` is."""
    job = SlurmJob(program="x.py", job_root=str(root), chdir="/", python="/bin/true")
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": job_id, "SLURMD_NODENAME": "here"}
    subprocess.run(["bash", "-c", job.script()], env=environ, check=True)


@pytest.mark.parametrize("left", ["12/submit.json", "12/job.json", "12/attempt-0/job.json"])
@pytest.mark.parametrize("script_first", [False, True])
def test_whoever_is_first_the_job_has_its_folder(
    tmp_path: Path, left: str, script_first: bool
) -> None:
    make(tmp_path, left)
    earlier = EarlierJobs(tmp_path)
    if script_first:
        start(tmp_path, "12")
        began = (tmp_path / "12" / "attempt-0").stat().st_ino
        earlier.set_aside("12")
    else:
        earlier.set_aside("12")
        assert names(tmp_path) == ["12.before"]
        make(tmp_path, "12/submit.json")  # as submit does next
        start(tmp_path, "12")
        began = (tmp_path / "12" / "attempt-0").stat().st_ino
        assert (tmp_path / "12" / "submit.json").exists()
    assert (tmp_path / "12" / "attempt-0").stat().st_ino == began
    assert (tmp_path / "12" / "attempt-0" / "controller.log").exists()
    # Of a job that never started nothing is missed.
    kept = left != "12/submit.json" or not script_first
    assert names(tmp_path) == (["12", "12.before"] if kept else ["12"])


def test_only_folders_of_the_id_are_set_aside(tmp_path: Path) -> None:
    others = ["1/x", "123/x", "12.before-7/x", "12_x/x", "local-12/x"]
    make(tmp_path, "12/x", "12_0/x", "12_10/x", *others)
    EarlierJobs(tmp_path).set_aside("12")
    mine = ["12.before", "12_0.before", "12_10.before"]
    assert names(tmp_path) == sorted([*mine, "1", "12.before", "123", "12_x", "local"])


def test_a_folder_made_since_is_the_jobs_own(tmp_path: Path) -> None:
    earlier = EarlierJobs(tmp_path)
    start(tmp_path, "12")
    earlier.set_aside("12")
    assert names(tmp_path) == ["12"]


@pytest.fixture
def unreadable() -> Iterator[Path]:
    """A folder in which one may make files, but not see which there are."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="smt-") as folder:
        os.chmod(folder, 0o733 if os.geteuid() == 0 else 0o333)
        before = os.geteuid()
        if before == 0:
            os.seteuid(NOBODY)
        try:
            yield Path(folder)
        finally:
            os.seteuid(before)
            os.chmod(folder, 0o700)


def test_a_root_that_may_only_be_written_will_do(unreadable: Path) -> None:
    with pytest.raises(PermissionError):
        os.listdir(unreadable)
    prepare_root(unreadable)
    (unreadable / "12").mkdir()
    EarlierJobs(unreadable).set_aside("12")
    assert (unreadable / "12").is_dir()

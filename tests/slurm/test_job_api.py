"""``SlurmJob`` as a notebook uses it, on a real Slurm."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import slurmmesh as sm
from slurmmesh.lab import Lab
from slurmmesh.slurm.states import JobState


@pytest.fixture
def here(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, value in lab.env().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slurm
@pytest.mark.slow
def test_the_life_of_a_job(here: Path) -> None:
    (here / "program.py").write_text(
        "import sys, slurmmesh as sm; print(sm.this_job().hosts.names, sys.argv[1:]); sys.exit(3)"
    )
    job = sm.SlurmJob("program.py", args=["a b"], nodes=2, cpus_per_task=3, job_name="it's me")
    assert "--cpus-per-task=3" in job.script()
    submitted = job.submit()
    assert (job.id, submitted.job_name) == ("", "it's me")
    ended = submitted.wait()
    assert ended is not None
    assert ended.exit_code == 3
    status = submitted.status()
    assert (status.state, status.exit_code) == (JobState.FAILED, 3)
    assert "['node1', 'node2'] ['a b']\n" in submitted.logs()
    assert "==> node1.log <==" in submitted.logs(tail=1)
    assert sm.SlurmJob.load(submitted.id) == submitted


@pytest.mark.slurm
@pytest.mark.slow
def test_cancel(here: Path) -> None:
    (here / "program.py").write_text("import time; time.sleep(600)")
    job = sm.SlurmJob("program.py", begin="now+1hour").submit()
    assert job.wait(timeout_s=0) is None
    assert job.status().state is JobState.PENDING
    assert "begin time" in job.status().why
    job.cancel()
    assert job.status().state is JobState.CANCELLED
    job.cancel()


@pytest.mark.slurm
@pytest.mark.slow
def test_an_array(here: Path) -> None:
    (here / "program.py").write_text("import os; print(os.environ['SLURM_ARRAY_TASK_ID'])")
    job = sm.SlurmJob("program.py", array="0-1").submit()
    ended = job.wait()
    assert ended is not None
    assert ended.message == f"job {job.id}: all 2 tasks ended well"
    assert job.status().state is JobState.COMPLETED
    task = sm.SlurmJob.load(f"{job.id}_1")
    assert (task.id, task.status().state) == (f"{job.id}_1", JobState.COMPLETED)
    assert task.logs().endswith("\n1\n")
    log = f"==> {job.id}_1/controller.log <==\n"
    assert "\n1\n" in job.logs().partition(log)[2].partition("==>")[0]


def test_before_it_is_submitted_there_is_nothing_to_ask(tmp_path: Path) -> None:
    job = sm.SlurmJob("program.py", job_root=tmp_path, chdir=tmp_path)
    for ask in (job.status, job.logs, job.wait, job.cancel):
        with pytest.raises(sm.errors.UsageError, match=r"job = job\.submit\(\)"):
            ask()
    with pytest.raises(sm.errors.UsageError, match="slurmmesh list"):
        sm.SlurmJob.load("4711")


def test_it_is_plain_data(tmp_path: Path) -> None:
    job = sm.SlurmJob(("-m", "pkg.mod"), nodes="2-4", env={"A": "1"})
    assert (job.node_range, job.node_count, job.job_name) == ((2, 4), None, "pkg.mod")
    with pytest.raises(dataclasses.FrozenInstanceError):
        job.nodes = 3  # type: ignore[misc]
    assert dataclasses.replace(job, nodes=3).node_count == 3
    assert "secret" not in repr(sm.SlurmJob("x.py", env={"TOKEN": "secret"}))
    with pytest.raises(sm.errors.UsageError, match=r"no script 'nope\.py'"):
        sm.SlurmJob("nope.py", chdir=tmp_path).submit()
    with pytest.raises(TypeError, match="nodez"):
        sm.SlurmJob("x.py", nodez=3)  # type: ignore[call-arg]
    for wrong in ({"setup": "module load"}, {"args": "a b"}, {"cpus_per_task": 2.5}, {"mem": True}):
        with pytest.raises(sm.errors.UsageError):
            sm.SlurmJob("x.py", **wrong)  # type: ignore[arg-type]

"""What sbatch and scontrol really make of our words."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmmesh.config import Settings
from slurmmesh.errors import UsageError
from slurmmesh.lab import Lab
from slurmmesh.slurm.client import JobRef, SlurmClient
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.template import command_line_options, render

pytestmark = pytest.mark.slurm

# squeue shows a name as it is but for blanks at its ends, which cannot be told from padding.
VALUE = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=40
).filter(lambda text: text.strip() == text)


@pytest.fixture(scope="module")
def client(lab: Lab) -> SlurmClient:
    return SlurmClient(Settings(job_root=lab.root), lab.env())


@pytest.fixture
def held(tmp_path: Path) -> SlurmJob:
    """A job that never starts."""
    return SlurmJob(
        program=("train.py",), job_root=tmp_path, chdir=tmp_path, sbatch=("--hold",), nodes=2
    )


@pytest.fixture(autouse=True)
def _empty_queue(lab: Lab) -> Iterator[None]:
    yield
    lab.run("scancel", f"--user={os.getuid()}")


def submit(client: SlurmClient, job: SlurmJob) -> JobRef:
    return client.submit(render(job), command_line_options(job), name=str(job.job_name))


def shown(lab: Lab, ref: JobRef, form: str) -> str:
    return lab.run("squeue", "-h", "-t", "all", "-j", ref.id, "-o", form).stdout.removesuffix("\n")


@pytest.mark.slow
@given(name=VALUE, comment=VALUE)
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_sbatch_sees_names_as_they_are(
    lab: Lab, client: SlurmClient, held: SlurmJob, name: str, comment: str
) -> None:
    try:
        job = dataclasses.replace(held, job_name=name, comment=comment)
        script = render(job)
    except UsageError:
        return
    ref = submit(client, job)
    assert shown(lab, ref, "%j") == name
    assert shown(lab, ref, "%k") == comment
    assert shown(lab, ref, "%D") == "2"
    stored = lab.run("scontrol", "write", "batch_script", ref.id, "-").stdout
    assert stored.rstrip("\0\n") == script.rstrip("\n")


def test_the_name_of_the_issue(lab: Lab, client: SlurmClient, held: SlurmJob) -> None:
    name = 'my "run" #1'
    ref = submit(client, dataclasses.replace(held, job_name=name))
    assert shown(lab, ref, "%j") == name
    assert f"JobName={name}\n" in lab.run("scontrol", "show", "job", ref.id).stdout


def test_where_a_job_stands(lab: Lab, client: SlurmClient, held: SlurmJob) -> None:
    ref = submit(client, held)
    info = client.job(ref)
    assert info is not None
    assert (info.state, info.reason, info.nodes) == (JobState.PENDING, "JobHeldUser", "")
    client.cancel(ref)
    info = client.job(ref)
    assert info is not None
    assert (info.state, info.nodes) == (JobState.CANCELLED, "")
    client.cancel(ref)
    assert client.job(JobRef("999999")) is None
    assert client.why_not() == ""
    assert client.node_addresses(["node1", "node3"]) == dict.fromkeys(
        ["node1", "node3"], "127.0.0.1"
    )


def test_sbatch_is_deaf_to_the_users_shell(lab: Lab, held: SlurmJob) -> None:
    hostile = lab.env(
        SBATCH_PARTITION="low",
        SBATCH_JOB_NAME="leaked",
        SBATCH_TIMELIMIT="1",
        SLURM_JOB_ID="999",
        SQUEUE_FORMAT="junk",
        SQUEUE_STATES="COMPLETED",
        SLURM_CLUSTERS="nowhere",
        SLURM_TIME_FORMAT="%s",
    )
    client = SlurmClient(Settings(job_root=lab.root), hostile)
    ref = submit(client, held)
    assert shown(lab, ref, "%P %j %l") == "main train.py UNLIMITED"
    info = client.job(ref)
    assert info is not None
    assert info.state is JobState.PENDING


@pytest.mark.slow
def test_a_folder_with_a_hostile_name(
    client: SlurmClient, tmp_path: Path, wait_until: Callable[[Callable[[], object]], None]
) -> None:
    """The job's own output lands in it, whatever patterns Slurm may see in the name."""
    root = tmp_path / "a b'\"$x %j\nö"
    root.mkdir()
    job = SlurmJob(program=("no script",), job_root=root, chdir=root, python=sys.executable)
    ref = submit(client, job)
    wait_until(lambda: (info := client.job(ref)) is not None and info.state.is_over)
    assert str(root / ref.id / "attempt-0/controller.log") in (root / f"{ref.id}.out").read_text()
    assert "no script" in (root / ref.id / "attempt-0/controller.log").read_text()
    assert (root / ref.id).stat().st_mode & 0o777 == 0o700

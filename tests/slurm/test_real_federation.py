"""Two real clusters in a federation: a job that the other one runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slurmmesh.config import Settings
from slurmmesh.lab import Lab
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.ids import JobRef
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.jobinfo import JobInfo
from slurmmesh.slurm.states import JobState
from slurmmesh.slurm.watch import JobWatch

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WaitUntil = Callable[[Callable[[], object]], None]
SLEEP = "#!/bin/bash\nsleep 600\n"
# Nodes that one job fills; a queue that soon forgets.
SMALL = {"MinJobAge": "2"}


def conf_of(lab: Lab, name: str) -> str:
    lines = (lab.root / "etc" / "slurm.conf").read_text().splitlines()
    return next(line.partition("=")[2] for line in lines if line.startswith(f"{name}="))


@pytest.fixture(scope="module")
def labs(
    outlives_tests: Callable[[Path], AbstractContextManager[None]], wait_until: WaitUntil
) -> Iterator[tuple[Lab, Lab]]:
    """Clusters "lab", whose only node is taken, and "other", with one database."""
    with Lab(nodes=1, accounting=True, settings=SMALL) as first, outlives_tests(first.root):
        names = ("AccountingStorageType", "AccountingStorageHost", "AccountingStoragePort")
        shared = (*names, "AccountingStoragePass", "AuthInfo")
        settings = {**SMALL, "ClusterName": "other", **{n: conf_of(first, n) for n in shared}}
        with Lab(nodes=1, settings=settings) as second, outlives_tests(second.root):
            wait_until(lambda: "other|" in told(first, "sacctmgr", "-nP", "list", "clusters"))
            first.run("sacctmgr", "-i", "add", "federation", "fed", "clusters=lab,other")
            for lab in (first, second):
                wait_until(lambda lab=lab: "Synced:Yes" in told(lab, "scontrol", "show", "fed"))
            submit(first, SLEEP, "--clusters=lab")
            wait_until(lambda: "RUNNING" in told(first, "squeue", "-h", "-o", "%T"))
            yield first, second


def told(lab: Lab, *command: str) -> str:
    return lab.run(*command).stdout


def client_of(lab: Lab) -> SlurmClient:
    return SlurmClient(Settings(job_root=lab.root, slurm_patience_s=1.0), lab.env())


def submit(lab: Lab, script: str, *options: str) -> JobRef:
    """A job that needs a whole node: later ones have to be run by the other cluster."""
    where = ["--output=/dev/null", f"--chdir={lab.root}"]
    return client_of(lab).submit(script, [*where, "--exclusive", *options])


def known(lab: Lab, ref: JobRef) -> JobInfo:
    info = client_of(lab).job(ref)
    assert info is not None
    return info


def test_a_job_that_another_cluster_runs(labs: tuple[Lab, Lab], wait_until: WaitUntil) -> None:
    here, other = labs
    ref = submit(here, SLEEP)
    assert ref.is_federated
    wait_until(lambda: known(here, ref).state is JobState.RUNNING)
    wait_until(lambda: "REVOKED" in told(here, "squeue", "-h", "-o", "%T", "-j", ref.id, "-tall"))
    # Whoever is asked, and whichever cluster is named, tells the same.
    for lab in (here, other):
        for name in ("", "lab", "other"):
            info = known(lab, JobRef(ref.id, name))
            assert (info.state, info.cluster) == (JobState.RUNNING, "other"), (lab, name)
        assert client_of(lab).queue()[ref].cluster == "other"
        assert client_of(lab).steps(ref) == {ref.id, f"{ref.id}.batch"}
        # A job that waits, or runs, on both, and the size of the larger partition.
        assert client_of(lab).partition_sizes() == {"main": 1, "": 1, "low": 1}
    # Commands find it from everywhere.
    client_of(other).requeue(ref)
    wait_until(lambda: (info := known(here, ref)).restarts and info.state is JobState.RUNNING)
    client_of(here).cancel(JobRef(ref.id, "lab"))
    wait_until(lambda: known(here, ref).state is JobState.CANCELLED)


def test_its_end_is_that_of_the_other_cluster(
    labs: tuple[Lab, Lab], wait_until: WaitUntil, tmp_path: Path
) -> None:
    here, other = labs
    ref = submit(here, "#!/bin/bash\nexit 3\n")
    job = SlurmJob("x.py", job_root=tmp_path, chdir=tmp_path)
    lines: list[str] = []
    watch = JobWatch(client_of(here), dataclasses.replace(job, id=ref.id), lines.append)
    wait_until(watch.is_over)
    assert watch.outcome is not None
    assert watch.outcome.exit_code == 3
    # Also when no queue has it any more.
    for lab in (here, other):
        wait_until(lambda lab=lab: ref.id not in told(lab, "squeue", "-h", "-t", "all", "-a"))
    info = known(here, ref)
    assert (info.state, info.exit_code, info.cluster) == (JobState.FAILED, 3, "other")
    assert known(here, JobRef(ref.id, "lab")).state is JobState.FAILED


def test_the_silence_of_the_other_cluster_is_no_end(
    labs: tuple[Lab, Lab], wait_until: WaitUntil, tmp_path: Path
) -> None:
    here, other = labs
    ref = submit(here, SLEEP)
    wait_until(lambda: known(here, ref).state is JobState.RUNNING)
    job = SlurmJob("x.py", job_root=tmp_path, chdir=tmp_path)
    lines: list[str] = []
    watch = JobWatch(client_of(here), dataclasses.replace(job, id=ref.id), lines.append)
    other.stop_slurmctld()
    try:
        assert watch.look()
        assert not watch.is_over()
        assert "runs on another cluster of the federation" in lines[-1]
    finally:
        other.restart_slurmctld()
    wait_until(lambda: watch.look() and "is running on node1" in lines[-1])
    client_of(here).cancel(ref)
    wait_until(watch.is_over)
    assert watch.outcome is not None
    assert watch.outcome.exit_code == 4
    assert "was cancelled" in watch.outcome.message

"""Calls of Slurm's commands, against commands that behave as sites' do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.config import Settings
from slurmmesh.errors import MissingDependencyError, SubmitError
from slurmmesh.slurm import refusals
from slurmmesh.slurm.client import (
    JobInfo,
    JobRef,
    SlurmClient,
    parse_job_info,
    parse_job_ref,
    parse_node_addresses,
    parse_partition_sizes,
)
from slurmmesh.slurm.states import JobState

SETTINGS = Settings(job_root=Path("/jobs"), slurm_timeout_s=20.0, slurm_patience_s=1.0)
Fake = Callable[..., dict[str, str]]


@pytest.fixture
def client(fake: Fake) -> Callable[..., SlurmClient]:
    """A client whose Slurm commands are the given scripts."""

    def make(settings: Settings = SETTINGS, **scripts: str) -> SlurmClient:
        return SlurmClient(settings, fake(**scripts))

    return make


@pytest.mark.parametrize(
    ("stdout", "ref"),
    [
        ("123\n", JobRef("123")),
        ("123;cluster2\n", JobRef("123", "cluster2")),
        ("*** Welcome to 2026 ***\n\n123\n", JobRef("123")),
        ("sbatch: loaded plugin 7\n 123;c \nnote: 5 jobs left\n", JobRef("123", "c")),
        ("Submitted batch job 123\n", None),
        ("", None),
    ],
)
def test_finds_the_job_id_between_banners(stdout: str, ref: JobRef | None) -> None:
    assert parse_job_ref(stdout) == ref


def test_a_job_of_another_cluster_is_asked_for_there(
    client: Callable[..., SlurmClient], tmp_path: Path
) -> None:
    slurm = client(
        squeue='printf "%s\\n" "$@" >args; echo "CLUSTER: c2"; echo "7|RUNNING|None|n[1-2]|0|0|"',
        scancel='printf "%s\\n" "$@" >args',
    )
    ref = JobRef("7", "c2")
    assert slurm.job(ref) == JobInfo(JobState.RUNNING, "None", "n[1-2]")
    args = tmp_path / "bin/args"
    assert args.read_text().splitlines()[:2] == ["-M", "c2"]
    slurm.cancel(ref)
    assert args.read_text().splitlines() == ["-M", "c2", "7"]


@pytest.mark.parametrize(
    ("line", "info"),
    [
        ("7|PENDING|Resources||0|0|", JobInfo(JobState.PENDING, "Resources")),
        (
            "7|FAILED|NonZeroExitCode|n1|768|0|",
            JobInfo(JobState.FAILED, "NonZeroExitCode", "n1", 3),
        ),
        ("7|FAILED|x|n1|9|1|", JobInfo(JobState.FAILED, "x", "n1", 0, 9, 1)),
        ("7|BRAND_NEW|x|n1|?|?|", JobInfo(JobState.UNKNOWN, "x", "n1")),
        (
            "7|RUNNING|x|n2|0|0|n1|",
            JobInfo(JobState.RUNNING, "x", "n2", batch_host="n1"),
        ),
        ("8|RUNNING|x|n1|0|0|", None),
        ("junk", None),
    ],
)
def test_reads_squeue(line: str, info: JobInfo | None) -> None:
    assert parse_job_info(f"banner\n{line}\n", JobRef("7")) == info


def test_reads_the_sizes_of_partitions() -> None:
    text = "*** banner ***\nmain*|4\nlow|2\nodd\n"
    assert parse_partition_sizes(text) == {"main": 4, "": 4, "low": 2}


def test_reads_the_addresses_of_nodes() -> None:
    text = (
        "NodeName=n1 Arch=x NodeAddr=10.0.0.1 NodeHostName=n1.org Reason=a NodeAddr=9.9.9.9 b\n"
        "NodeName=n2 NodeHostName=n2.org\nNode n3 not found\n"
    )
    assert parse_node_addresses(text) == {"n1": "10.0.0.1", "n2": "n2.org"}


def test_a_submit_passes_warnings_on(client: Callable[..., SlurmClient], tmp_path: Path) -> None:
    slurm = client(
        sbatch='cat >script; echo "sbatch: warning: old option" >&2; echo "hello"; echo 5'
    )
    warnings: list[str] = []
    assert slurm.submit("the script \udcff\n", warn=warnings.append) == JobRef("5")
    assert warnings == ["sbatch: warning: old option"]
    assert (tmp_path / "bin/script").read_bytes() == b"the script \xff\n"


def test_tries_again_while_the_controller_refuses_connections(
    client: Callable[..., SlurmClient],
) -> None:
    slurm = client(
        sbatch="echo x >>tries; "
        'if [ $(wc -l <tries) -lt 3 ]; then echo "sbatch: error: Batch job submission failed: '
        'Unable to contact slurm controller (connect failure)" >&2; exit 1; fi; echo 9'
    )
    assert slurm.submit("") == JobRef("9")


@pytest.mark.parametrize(
    "script",
    [
        'echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv '
        'operation" >&2; exit 1',
        "exec sleep 60",
    ],
)
def test_never_submits_twice_where_the_first_may_have_arrived(
    client: Callable[..., SlurmClient], tmp_path: Path, script: str
) -> None:
    slurm = client(Settings(Path("/jobs"), slurm_timeout_s=1.0), sbatch=f"echo x >>tries; {script}")
    with pytest.raises(SubmitError, match="may or may not be in the queue") as caught:
        slurm.submit("", name="my job")
    assert "squeue --me" in caught.value.advice
    assert "my job" in caught.value.advice
    assert (tmp_path / "bin/tries").read_text() == "x\n"


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("sbatch: error: Batch job submission failed: Invalid partition name specified",
         "partition"),
        ("sbatch: error: Batch job submission failed: Invalid account or account/partition "
         "combination specified", "account"),
        ("sbatch: error: CPU count per node can not be satisfied\nsbatch: error: Batch job "
         "submission failed: Requested node configuration is not available", "no such nodes"),
        ("sbatch: unrecognized option '--foo'", "does not know an option"),
        ("sbatch: error: Batch job submission failed: Requested time limit is invalid (missing or "
         "exceeds some limit)", "time"),
        ("sbatch: error: site plugin: no coffee left", "refused the job"),
    ],
)  # fmt: skip
def test_tells_what_slurm_said_and_what_to_do(
    client: Callable[..., SlurmClient], said: str, message: str
) -> None:
    slurm = client(sbatch=f'cat >&2 <<"END"\n{said}\nEND\nexit 1')
    with pytest.raises(SubmitError, match=message) as caught:
        slurm.submit("")
    assert caught.value.exit_code == 3
    assert caught.value.slurm_message == refusals.error_line(said)
    assert caught.value.slurm_message in said
    assert caught.value.advice


def test_asks_only_for_a_while_whether_slurm_is_up(
    client: Callable[..., SlurmClient], tmp_path: Path
) -> None:
    slurm = client(
        sbatch="exit 1", scontrol='echo x >>tries; echo "Slurmctld at h is DOWN"; exit 1'
    )
    assert "does not answer" in slurm.why_not()
    with pytest.raises(SubmitError, match="does not answer"):
        slurm.wait_until_up()
    tries = (tmp_path / "bin/tries").read_text()
    assert 3 <= tries.count("x") <= 6


def test_waits_for_a_slurm_that_is_restarting(client: Callable[..., SlurmClient]) -> None:
    slurm = client(scontrol="if [ -e seen ]; then echo UP; else touch seen; echo DOWN; exit 1; fi")
    slurm.wait_until_up()


def test_does_not_wait_where_slurm_is_not_set_up(
    client: Callable[..., SlurmClient], tmp_path: Path
) -> None:
    slurm = client(
        scontrol="echo x >>tries; "
        'echo "scontrol: fatal: Could not establish a configuration source" >&2; exit 1'
    )
    with pytest.raises(SubmitError, match="finds no slurm"):
        slurm.wait_until_up()
    assert (tmp_path / "bin/tries").read_text() == "x\n"


def test_an_interrupt_cuts_a_slow_command_short(fake: Fake) -> None:
    environ = fake(sbatch="sleep 60 & exec sleep 60")
    slurm = SlurmClient(SETTINGS, environ, interrupted=lambda: True)
    with pytest.raises(SubmitError, match="may or may not"):
        slurm.submit("")


def test_no_slurm_at_all(tmp_path: Path) -> None:
    slurm = SlurmClient(SETTINGS, {"PATH": str(tmp_path)})
    assert slurm.why_not() == "sbatch is not installed"
    with pytest.raises(MissingDependencyError, match="apt-get install slurm-client"):
        slurm.submit("")
    assert slurm.node_addresses(["n1"]) == {}


def test_a_job_that_slurm_has_forgotten(client: Callable[..., SlurmClient]) -> None:
    slurm = client(
        squeue='echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1',
        scancel='echo "scancel: error: Kill job error on job id 7: Invalid job id specified" >&2; '
        "exit 1",
    )
    assert slurm.job(JobRef("7")) is None
    slurm.cancel(JobRef("7"))

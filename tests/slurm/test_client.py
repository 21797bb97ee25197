"""Calls of Slurm's commands, against commands that behave as sites' do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.config import Settings
from slurmmesh.errors import MissingDependencyError, SubmitError
from slurmmesh.slurm import refusals, submission
from slurmmesh.slurm.client import JobRef, SlurmClient
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.states import JobState

SETTINGS = Settings(job_root=Path("/jobs"), slurm_timeout_s=20.0, slurm_patience_s=1.0)
Fake = Callable[..., dict[str, str]]
MakeTable = Callable[..., str]


@pytest.fixture
def client(fake: Fake) -> Callable[..., SlurmClient]:
    """A client whose Slurm commands are the given scripts."""

    def make(settings: Settings = SETTINGS, **scripts: str) -> SlurmClient:
        return SlurmClient(settings, fake(**scripts))

    return make


def test_a_job_of_another_cluster_is_asked_for_there(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    slurm = client(
        squeue='printf "%s\\n" "$@" >args; echo "CLUSTER: c2"\n'
        + squeue(JobID="7", State="RUNNING", Reason="None", NodeList="n[1-2]", Cluster="c2"),
        scancel='printf "%s\\n" "$@" >args',
        scontrol='printf "%s\\n" "$@" >args',
    )
    ref = JobRef("7", "c2")
    info = slurm.job(ref)
    assert info is not None
    assert (info.state, info.nodes, info.cluster) == (JobState.RUNNING, "n[1-2]", "c2")
    args = tmp_path / "bin/args"
    assert args.read_text().splitlines()[:4] == ["-M", "c2", "--jobs", "7"]
    slurm.cancel(ref)
    assert args.read_text().splitlines() == ["-M", "c2", "7"]
    slurm.requeue(JobRef("7_2", "c2"))
    assert args.read_text().splitlines() == ["-M", "c2", "requeue", "7_2"]


def test_many_jobs_are_one_question_to_each_cluster(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    slurm = client(
        squeue='echo "$1 $2 $3 $4" >>asked\n'
        + squeue(
            {"JobID": "7", "State": "RUNNING"},
            {"JobID": "9", "ArrayJobID": "8", "ArrayTaskID": "1", "State": "RUNNING"},
            {"JobID": "8", "ArrayJobID": "8", "ArrayTaskID": "2-3", "State": "PENDING"},
            {"JobID": "11", "HetJobID": "10", "HetJobOffset": "1", "State": "RUNNING"},
            {"JobID": "10", "HetJobID": "10", "HetJobOffset": "0", "State": "RUNNING"},
        )
    )
    wanted = ["7", "8", "10", "99", "7;c", "8_3;c", "8_[1-2];c", "10+1;c"]
    known = slurm.jobs(JobRef.parse(text) for text in wanted)
    assert {str(ref): info.state.value for ref, info in known.items()} == {
        "7": "RUNNING",
        "8_1": "RUNNING",
        "8_2": "PENDING",
        "8_3": "PENDING",
        "10+0": "RUNNING",
        "10+1": "RUNNING",
        "7;c": "RUNNING",
        "8_1;c": "RUNNING",
        "8_2;c": "PENDING",
        "8_3;c": "PENDING",
        "10+1;c": "RUNNING",
    }
    asked = (tmp_path / "bin/asked").read_text().splitlines()
    assert asked == ["--jobs 7,8,10,99 --states=all --all", "-M c --jobs 7,8_3,8,10"]
    array = slurm.job(JobRef("8"))
    assert array is not None
    assert array.state is JobState.RUNNING
    task = slurm.job(JobRef("9"))  # as it knows itself
    assert task is not None
    assert task.raw_id == "9"


def test_more_ids_than_a_command_line_should_hold(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    slurm = client(squeue="echo x >>asked\n" + squeue())
    assert slurm.jobs(JobRef(str(number)) for number in range(1, 1201)) == {}
    assert (tmp_path / "bin/asked").read_text().count("x") == 3


def test_where_squeue_is_wrapped_it_is_asked_for_json(client: Callable[..., SlurmClient]) -> None:
    slurm = client(
        squeue="""
if [[ "$*" != *--json* ]]; then echo "JOBID ST"; echo "7 R"; exit; fi
echo "{ hello }"
echo '{"jobs": [{"job_id": 7, "job_state": ["RUNNING"], "name": "x"}]}'
"""
    )
    info = slurm.job(JobRef("7"))
    assert info is not None
    assert (info.state, info.name) == (JobState.RUNNING, "x")
    assert slurm.job(JobRef("8")) is None


def test_an_answer_that_nobody_can_read_is_told(client: Callable[..., SlurmClient]) -> None:
    slurm = client(squeue='echo "7 is running, be happy"')
    with pytest.raises(SubmitError, match="cannot be read") as caught:
        slurm.job(JobRef("7"))
    assert caught.value.slurm_message == "7 is running, be happy"


def test_banners_around_a_table(client: Callable[..., SlurmClient], squeue: MakeTable) -> None:
    slurm = client(
        squeue='echo "7"; echo "*** 7|RUNNING|x ***"; echo "warning: 7" >&2; echo -n "welcome"\n'
        + squeue(JobID="7", State="COMPLETED", Name="7")
        + '\necho "7"; echo "see you"'
    )
    info = slurm.job(JobRef("7"))
    assert info is not None
    assert (info.state, info.name) == (JobState.COMPLETED, "7")


@pytest.mark.slow
def test_many_jobs_are_asked_for_again_while_slurm_restarts(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    down = 'echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1'
    table = squeue(JobID="7", State="RUNNING")
    slurm = client(squeue=f"echo x >>tries; if [ $(wc -l <tries) -lt 3 ]; then {down}; fi\n{table}")
    assert list(slurm.jobs([JobRef("7")])) == [JobRef("7")]
    (tmp_path / "bin/tries").unlink()
    with pytest.raises(SubmitError, match="does not answer"):
        slurm.job(JobRef("7"))  # a watch comes back by itself
    assert (tmp_path / "bin/tries").read_text() == "x\n"


def test_a_cluster_that_does_not_exist(client: Callable[..., SlurmClient]) -> None:
    said = "'x' can't be reached now, or it is an invalid entry for --cluster."
    slurm = client(squeue=f'echo "squeue: error: {said}" >&2; exit 1')
    with pytest.raises(SubmitError, match="knows no such cluster") as caught:
        slurm.jobs([JobRef("7", "x")])
    assert caught.value.slurm_message == said


def test_what_squeue_has_forgotten_sacct_may_know(
    client: Callable[..., SlurmClient], squeue: MakeTable, sacct: MakeTable
) -> None:
    slurm = client(
        squeue=squeue(JobID="7", State="RUNNING"),
        sacct=sacct(
            {"JobID": "5", "State": "CANCELLED by 0", "JobName": "a\nb"},
            {"JobID": "4_1", "State": "TIMEOUT", "ExitCode": "0:15"},
            {"JobID": "3", "State": "RUNNING"},  # lost, but not told to the database
        ),
    )
    known = slurm.jobs(map(JobRef, ("3", "4", "5", "6", "7")))
    states = {ref.id: info.state.value for ref, info in known.items()}
    assert states == {"7": "RUNNING", "5": "CANCELLED", "4_1": "TIMEOUT"}
    assert known[JobRef("4_1")].signal == 15
    assert known[JobRef("5")].name == "a\nb"


def test_without_accounting_sacct_is_asked_once(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    slurm = client(
        squeue=squeue(),
        sacct='echo x >>tries; echo "Slurm accounting storage is disabled" >&2; exit 1',
    )
    assert slurm.job(JobRef("7")) is None
    assert slurm.job(JobRef("7")) is None
    assert (tmp_path / "bin/tries").read_text() == "x\n"


@pytest.mark.slow
def test_sacct_that_failed_is_asked_again_later(
    client: Callable[..., SlurmClient],
    squeue: MakeTable,
    sacct: MakeTable,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    failing = 'echo "sacct: error: slurm_persist_conn_open: Connection refused" >&2; exit 1'
    table = sacct(JobID="7", State="TIMEOUT")
    scripts = {
        "squeue": squeue(),
        "sacct": f"echo x >>tries; [ $(wc -l <tries) -lt 3 ] && {{ {failing}; }}\n{table}",
    }
    slurm = client(**scripts)
    assert [slurm.job(JobRef("7")) for _ in range(3)] == [None] * 3
    assert (tmp_path / "bin/tries").read_text() == "x\n"  # not so soon
    monkeypatch.setattr("slurmmesh.slurm.client._FIRST_SACCT_PAUSE_S", 0.0)
    slurm = client(**scripts)
    states = [info and info.state.value for info in (slurm.job(JobRef("7")) for _ in range(3))]
    assert states == [None, "TIMEOUT", "TIMEOUT"]


# As a federation numbers the jobs that its first cluster took.
FEDERATED = str((1 << 26) + 7)


def test_what_a_federated_job_does_is_told_by_the_cluster_that_runs_it(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    rows = [
        {"JobID": FEDERATED, "State": "REVOKED", "Cluster": "a"},
        {"JobID": FEDERATED, "State": "RUNNING", "Cluster": "b", "NodeList": "n1"},
    ]
    for given in (rows, rows[::-1]):
        info = client_of_rows(client, squeue, *given).job(JobRef(FEDERATED))
        assert info is not None
        assert (info.state, info.nodes, info.cluster) == (JobState.RUNNING, "n1", "b")
        args = (tmp_path / "bin/args").read_text().split()
        assert args[:5] == ["--jobs", FEDERATED, "--states=all", "--federation", "--sibling"]


def client_of_rows(
    client: Callable[..., SlurmClient], squeue: MakeTable, *rows: dict[str, str]
) -> SlurmClient:
    return client(squeue='echo "$@" >args\n' + squeue(*rows), sacct="echo asked >>args; exit 1")


def test_no_other_job_is_asked_for_in_a_federation(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    client_of_rows(client, squeue, {"JobID": "7", "State": "RUNNING"}).job(JobRef("7"))
    assert "--federation" not in (tmp_path / "bin/args").read_text()


def test_a_federated_job_of_a_named_cluster_is_looked_for_in_all(
    client: Callable[..., SlurmClient], squeue: MakeTable, tmp_path: Path
) -> None:
    revoked = squeue(JobID=FEDERATED, State="REVOKED", Cluster="a")
    running = squeue(JobID=FEDERATED, State="RUNNING", Cluster="b")
    slurm = client(
        squeue=f"if [[ $1 == -M ]]; then\n{revoked}\nelse\n{running}\nfi", sacct="exit 1"
    )
    ref = JobRef(FEDERATED, "a")
    assert {job: info.cluster for job, info in slurm.jobs([ref]).items()} == {ref: "b"}


@pytest.mark.slow
def test_a_federated_job_whose_cluster_is_not_heard_is_not_over(
    client: Callable[..., SlurmClient], squeue: MakeTable, sacct: MakeTable
) -> None:
    revoked = squeue(JobID=FEDERATED, State="REVOKED", Cluster="a")
    for ref in (JobRef(FEDERATED), JobRef(FEDERATED, "a")):
        info = client(squeue=revoked, sacct="exit 1").job(ref)
        assert info is not None
        assert info.state is JobState.REVOKED
        assert not info.state.is_over
    # The database is one for all of the clusters.
    ended = '[[ "$*" == *--federation* ]] || exit 0\n' + sacct(JobID=FEDERATED, State="FAILED")
    info = client(squeue=revoked, sacct=ended).job(JobRef(FEDERATED))
    assert info is not None
    assert info.state is JobState.FAILED


@pytest.mark.slow
def test_the_partitions_of_named_clusters(
    client: Callable[..., SlurmClient], tmp_path: Path
) -> None:
    slurm = client(
        scontrol='echo "Slurmctld(primary) at h is UP"',
        sinfo='echo "$1 $2" >>args; echo "CLUSTER: a"; echo "main*|2"; echo "main*|4"',
    )
    assert slurm.partition_sizes() == slurm.partition_sizes("a,b") == {"main": 4, "": 4}
    job = SlurmJob("x.py", nodes="5", clusters="a,b", job_root=tmp_path, chdir=tmp_path)
    with pytest.raises(SubmitError, match="has 4 nodes, but 5 are asked for"):
        submission.test(job, slurm, lambda line: None)
    args = (tmp_path / "bin/args").read_text().splitlines()
    assert args == ["--federation --all", "-M a,b", "-M a,b"]


def steps_table(*rows: tuple[str, str]) -> str:
    """A script that prints the steps it is asked for, as squeue does, with a banner around."""
    lines = ["JOB_ID@@JOB_ID@@STEPID@@", *(f"{job}@@{job}@@{step}@@" for job, step in rows)]
    text = "\n".join(lines)
    return (
        'mark=$(grep -o "~[0-9a-f]*~" <<<"$*" | head -n 1); echo "7.9 is no step"\n'
        f"sed \"s/@@/$mark/g\" <<'END'\n{text}\nEND\necho 7.8"
    )


def test_what_of_a_job_lives(client: Callable[..., SlurmClient], squeue: MakeTable) -> None:
    # The last task of an array goes by the array's number, its steps by the task's.
    steps = steps_table(("7", "7_2.0"), ("7", "7_2.batch"), ("8", "7_1.3"))
    jobs = squeue(
        {"JobID": "7", "ArrayJobID": "7", "ArrayTaskID": "2", "State": "RUNNING"},
        {"JobID": "8", "ArrayJobID": "7", "ArrayTaskID": "1", "State": "RUNNING"},
        {"JobID": "9", "State": "COMPLETED"},
        {"JobID": "10", "State": "PENDING"},
    )
    slurm = client(
        squeue=f'if [[ "$1" == --steps ]]; then\n{steps}\nelse\n{jobs}\nfi', sacct="exit 1"
    )
    assert slurm.steps(JobRef("7")) == {"7", "7.0", "7.batch"}
    assert slurm.steps(JobRef("8")) == {"8", "8.3"}
    assert [slurm.steps(JobRef(number)) for number in ("9", "10", "11")] == [frozenset()] * 3


def test_steps_that_slurm_does_not_tell(
    client: Callable[..., SlurmClient], squeue: MakeTable
) -> None:
    jobs = squeue(JobID="7", State="RUNNING")
    slurm = client(squeue=f'[[ "$1" == --steps ]] && {{ echo 7.0; exit; }}\n{jobs}')
    with pytest.raises(SubmitError, match="cannot be read"):
        slurm.steps(JobRef("7"))


def test_a_step_gets_signals(client: Callable[..., SlurmClient], tmp_path: Path) -> None:
    slurm = client(
        scancel='echo "$@" >args; [ "$#" = 2 ] && exit; echo "scancel: error: Kill job error on '
        'job step id 7: Invalid job id specified" >&2; exit 225'
    )
    slurm.signal_step("7.1", "USR2")
    assert (tmp_path / "bin/args").read_text() == "--signal=USR2 7.1\n"
    slurm.signal_step("7.1")
    assert (tmp_path / "bin/args").read_text() == "7.1\n"


def test_a_submit_passes_warnings_on(client: Callable[..., SlurmClient], tmp_path: Path) -> None:
    slurm = client(
        sbatch='cat >script; echo "sbatch: warning: old option" >&2; echo "hello"; echo 5'
    )
    warnings: list[str] = []
    assert slurm.submit("the script \udcff\n", warn=warnings.append) == JobRef("5")
    assert warnings == ["sbatch: warning: old option"]
    assert (tmp_path / "bin/script").read_bytes() == b"the script \xff\n"


@pytest.mark.slow
def test_tries_again_while_the_controller_refuses_connections(
    client: Callable[..., SlurmClient],
) -> None:
    slurm = client(
        sbatch="echo x >>tries; "
        'if [ $(wc -l <tries) -lt 3 ]; then echo "sbatch: error: Batch job submission failed: '
        'Unable to contact slurm controller (connect failure)" >&2; exit 1; fi; echo 9'
    )
    assert slurm.submit("") == JobRef("9")


@pytest.mark.slow
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


@pytest.mark.slow
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


def test_waits_for_a_slurm_that_is_restarting(
    client: Callable[..., SlurmClient], tmp_path: Path
) -> None:
    slurm = client(
        scontrol="echo x >>tries; if [ -e seen ]; then echo 'Slurmctld(primary) at h is UP'; "
        "else touch seen; echo 'the site is UP'; echo 'Slurmctld(primary) at h is DOWN'; fi"
    )
    slurm.wait_until_up()
    assert (tmp_path / "bin/tries").read_text() == "x\nx\n"


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


@pytest.mark.slow
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
        sacct="exit 1",
        squeue='echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1',
        scancel='echo "scancel: error: Kill job error on job id 7: Invalid job id specified" >&2; '
        "exit 1",
    )
    assert slurm.job(JobRef("7")) is None
    slurm.cancel(JobRef("7"))


def test_what_is_refused_is_not_asked_again(
    client: Callable[..., SlurmClient], tmp_path: Path
) -> None:
    denied = 'echo x >>tries; echo "error: 7: Access/permission denied" >&2; exit 1'
    slurm = client(scancel=denied, scontrol=denied)
    with pytest.raises(SubmitError, match="does not let you"):
        slurm.cancel(JobRef("7"))
    with pytest.raises(SubmitError, match="does not let you"):
        slurm.requeue(JobRef("7"))
    assert (tmp_path / "bin/tries").read_text() == "x\nx\n"


def test_a_command_that_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "sbatch").write_bytes(b"\x7fELF of another machine")
    (tmp_path / "sbatch").chmod(0o755)
    slurm = SlurmClient(SETTINGS, {"PATH": str(tmp_path)})
    with pytest.raises(SubmitError, match="sbatch cannot be run here: Exec format error"):
        slurm.submit("")

"""What a real Slurm answers about jobs with hostile names, arrays and heterogeneous jobs."""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slurmmesh.config import Settings
from slurmmesh.errors import SubmitError
from slurmmesh.lab import Lab
from slurmmesh.slurm.client import JobInfo, JobRef, SlurmClient
from slurmmesh.slurm.jobjson import parse_squeue_json
from slurmmesh.slurm.states import JobState

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

HOLD = ("--hold", "--output=/dev/null")
SLEEP = "#!/bin/bash\nsleep 600\n"
HETEROGENEOUS = """#!/bin/bash
#SBATCH --nodes=1 --output=/dev/null
#SBATCH hetjob
#SBATCH --nodes=2 --output=/dev/null
sleep 600
"""
NAME = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=60
)
WaitUntil = Callable[[Callable[[], object]], None]


def client_of(lab: Lab, **environ: str) -> SlurmClient:
    return SlurmClient(Settings(job_root=lab.root), lab.env(**environ))


@pytest.fixture(scope="module")
def client(lab: Lab) -> SlurmClient:
    return client_of(lab)


@pytest.fixture(autouse=True)
def _empty_queue(lab: Lab) -> Iterator[None]:
    yield
    lab.run("scancel", f"--user={os.getuid()}")


def state(client: SlurmClient, text: str) -> str:
    info = client.job(JobRef(text))
    return info.state.value if info else ""


@given(name=NAME)
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_name_is_read_as_it_is(client: SlurmClient, name: str) -> None:
    ref = client.submit(SLEEP, [*HOLD, f"--job-name={name}"], name=name)
    info = client.job(ref)
    assert info is not None
    assert (info.name, info.state, info.reason) == (name, JobState.PENDING, "JobHeldUser")


@pytest.mark.parametrize(
    "name",
    [
        "a|b",
        "~0123456789ab~",
        "1\n2\n3",
        "7~7~RUNNING~",
        "\x1f\x1e",
        " x ",
        "$m `id` %j",
        "ö ü",
        "'\"",
    ],
)
def test_names_that_look_like_tables(client: SlurmClient, name: str) -> None:
    first = client.submit(SLEEP, [*HOLD, f"--job-name={name}"], name=name)
    second = client.submit(SLEEP, [*HOLD, "--job-name=other"], name="other")
    known = client.jobs([second, first])
    assert {ref: info.name for ref, info in known.items()} == {first: name, second: "other"}


def test_all_that_is_told_of_a_job(lab: Lab, client: SlurmClient, wait_until: WaitUntil) -> None:
    before = time.time() - 2
    ref = client.submit(
        "#!/bin/bash\nexit 3\n",
        ["--output=/dev/null", "--chdir=/", "--nodes=2", "--time=2-12", "--job-name=x y"],
    )
    wait_until(lambda: (info := client.job(ref)) is not None and info.state.is_over)
    info = client.job(ref)
    assert info is not None
    times = [info.submitted, info.started, info.ended]
    assert all(moment and before < moment < time.time() + 2 for moment in times)
    assert info.time_used_s is not None
    assert dataclasses.replace(
        info, submitted=None, started=None, ended=None, time_used_s=None
    ) == JobInfo(
        state=JobState.FAILED,
        reason="NonZeroExitCode",
        nodes="node[1-2]",
        exit_code=3,
        batch_host="node1",
        raw_id=ref.id,
        name="x y",
        user=info.user,
        partition="main",
        node_count=2,
        time_limit_s=216000.0,
        work_dir="/",
        stdout="/dev/null",
        requeue=True,
        cluster="lab",
    )


def test_ids_that_slurm_does_not_know(client: SlurmClient) -> None:
    ref = client.submit(SLEEP, HOLD)
    unknown = [JobRef("999998"), JobRef("999999"), JobRef(f"{ref.id}_3"), JobRef("999999+1")]
    assert list(client.jobs([*unknown, ref])) == [ref]
    assert client.jobs(unknown) == {}
    assert client.job(unknown[0]) is None
    client.cancel(unknown[0])


def test_an_array(client: SlurmClient, wait_until: WaitUntil) -> None:
    ref = client.submit(SLEEP, [*HOLD, "--array=1-7:2%2,10"])
    tasks = [JobRef(f"{ref.id}_{index}") for index in (1, 3, 5, 7, 10)]
    known = client.jobs([ref])
    assert sorted(known, key=lambda job: job.tasks or ()) == tasks
    assert {info.state for info in known.values()} == {JobState.PENDING}
    assert list(client.jobs([tasks[1]])) == [tasks[1]]
    client.cancel(tasks[1])
    client.cancel(JobRef.parse(f"{ref.id}_[1,7-10:3%2]"))
    states = {job.id: info.state.value for job, info in client.jobs([ref]).items()}
    assert states.pop(tasks[2].id) == "PENDING"
    assert set(states.values()) <= {"CANCELLED"}
    assert state(client, ref.id) == "PENDING"
    client.cancel(ref)
    assert state(client, ref.id) == "CANCELLED"


def test_a_requeue_of_a_task_leaves_the_others_alone(
    client: SlurmClient, wait_until: WaitUntil
) -> None:
    ref = client.submit(SLEEP, ["--output=/dev/null", "--array=1-2"])
    first, second = JobRef(f"{ref.id}_1"), JobRef(f"{ref.id}_2")
    wait_until(lambda: {state(client, job.id) for job in (first, second)} == {"RUNNING"})
    client.requeue(first)
    wait_until(lambda: state(client, first.id) != "COMPLETING")
    known = client.jobs([ref])
    assert {job.id: info.restarts for job, info in known.items()} == {first.id: 1, second.id: 0}
    assert known[second].state is JobState.RUNNING
    # The job knows itself by a number of its own.
    own = client.jobs([JobRef(known[first].raw_id)])
    assert first in own


def test_a_heterogeneous_job(client: SlurmClient, wait_until: WaitUntil) -> None:
    ref = client.submit(HETEROGENEOUS)
    wait_until(lambda: state(client, ref.id) == "RUNNING")
    known = client.jobs([ref])
    parts = [JobRef(f"{ref.id}+{index}") for index in (0, 1)]
    assert sorted(known, key=str) == parts
    assert [known[part].node_count for part in parts] == [1, 2]
    assert list(client.jobs([parts[1]])) == [parts[1]]
    assert list(client.jobs([JobRef(known[parts[1]].raw_id)])) == [parts[1]]
    client.cancel(ref)
    wait_until(lambda: state(client, ref.id) == "CANCELLED")


def test_the_users_formats_change_nothing(lab: Lab, client: SlurmClient) -> None:
    ref = client.submit(SLEEP, HOLD)
    hostile = client_of(
        lab,
        SQUEUE_FORMAT="%j",
        SQUEUE_FORMAT2="JobID",
        SQUEUE_SORT="junk",
        SQUEUE_STATES="COMPLETED",
        SQUEUE_USERS="nobody",
        SQUEUE_PARTITION="low",
        SQUEUE_NAMES="x",
        SACCT_FORMAT="JobID",
        SINFO_FORMAT="%N",
        SINFO_PARTITION="low",
        SCANCEL_STATE="RUNNING",
        SCANCEL_NAME="x",
        SCANCEL_INTERACTIVE="true",
        SLURM_TIME_FORMAT="relative",
        SLURM_CLUSTERS="nowhere",
        SLURM_BITSTR_LEN="1",
        TZ="Pacific/Kiritimati",
    )
    assert hostile.job(ref) == client.job(ref)
    assert hostile.partition_sizes() == {"main": 4, "": 4, "low": 4}
    assert hostile.node_names() == {"node1", "node2", "node3", "node4"}
    assert set(hostile.node_addresses(["node1"])) == {"node1"}
    hostile.cancel(ref)
    assert state(client, ref.id) == "CANCELLED"


def test_json_tells_what_the_table_tells(
    lab: Lab, client: SlurmClient, wait_until: WaitUntil
) -> None:
    array = client.submit(SLEEP, [*HOLD, "--array=0-4:2", "--job-name=a|b\nö"])
    running = client.submit(SLEEP, ["--output=/dev/null", "--time=30", "--array=1-2"])
    pair = client.submit(HETEROGENEOUS)
    wait_until(lambda: state(client, pair.id) == "RUNNING")
    failed = client.submit("#!/bin/bash\nexit 7\n", ["--output=/dev/null"])
    wait_until(lambda: state(client, failed.id) == "FAILED")
    refs = [array, running, pair, failed]
    told = lab.run("squeue", "--json", check=False)
    if "serializer" in told.stderr:
        pytest.skip("this squeue has no JSON (in Debian: slurm-wlm-basic-plugins)")
    by_json = parse_squeue_json(told.stdout, time.time())
    assert by_json is not None
    by_table = client.jobs(refs)
    assert len(by_table) == 8
    for ref, info in by_table.items():
        # The year that a job without a time limit may take at most is left out by the table, the
        # missing limit by the JSON of 22.05.
        odd = ("ended", "time_limit_s") if info.time_limit_s == math.inf else ()
        both = [
            dataclasses.replace(told, **dict.fromkeys(("time_used_s", *odd)))
            for told in (by_json[ref], info)
        ]
        assert both[0] == both[1], ref


def test_a_wrapped_squeue_with_a_table_of_its_own(
    lab: Lab, client: SlurmClient, tmp_path: Path
) -> None:
    ref = client.submit(SLEEP, HOLD)
    wrapper = tmp_path / "squeue"
    wrapper.write_text(
        '#!/bin/bash\necho "{ Site News }"\n[[ "$*" == *--json* ]] && exec /usr/bin/squeue "$@"\n'
        "exec /usr/bin/squeue --me\n"
    )
    wrapper.chmod(0o755)
    wrapped = client_of(lab, PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert state(wrapped, ref.id) == "PENDING"
    assert wrapped.job(JobRef("999999")) is None


def test_when_a_job_would_start(client: SlurmClient) -> None:
    told = client.test("#!/bin/bash\n", ["--nodes=2"])
    assert told.startswith("Job ")
    assert "node" in told
    with pytest.raises(SubmitError, match="no such nodes"):
        client.test("#!/bin/bash\n", ["--gpus-per-node=99"])


def test_slurmctld_is_down(lab: Lab, client: SlurmClient) -> None:
    lab.stop_slurmctld()
    try:
        asked = SlurmClient(
            Settings(lab.root, slurm_timeout_s=2.0, slurm_patience_s=0.5), lab.env()
        )
        for ask in (
            lambda: asked.jobs([JobRef("7")]),
            lambda: asked.cancel(JobRef("7")),
            lambda: asked.submit("#!/bin/bash\n"),
        ):
            with pytest.raises(SubmitError, match=r"does not answer|took too long"):
                ask()
        assert asked.partition_sizes() == {}
    finally:
        lab.restart_slurmctld()


def test_accounting_remembers_what_squeue_forgets(wait_until: WaitUntil) -> None:
    with Lab(nodes=1, accounting=True, settings={"MinJobAge": "2"}) as lab:
        client = client_of(lab)
        # A cluster that is named is named in all that follows.
        ref = client.submit(
            "#!/bin/bash\nexit 3\n", ["-M", "lab", "--output=/dev/null", "--job-name=a|b\nc"]
        )
        assert ref.cluster == "lab"
        array = client.submit("#!/bin/bash\n", ["--output=/dev/null", "--array=1-2"])
        wait_until(lambda: not lab.run("squeue", "-h", "-t", "all").stdout.strip())
        wait_until(lambda: len(client.jobs([ref, array])) == 3)
        info = client.job(ref)
        assert info is not None
        assert (info.state, info.exit_code, info.name) == (JobState.FAILED, 3, "a|b\nc")
        assert info.ended
        assert state(client, array.id) == "COMPLETED"
        assert client.job(JobRef("999999")) is None
        held = client.submit(SLEEP, ["-M", "lab", *HOLD])
        client.cancel(held)
        assert client.jobs([held])[held].state is JobState.CANCELLED
        with pytest.raises(SubmitError, match="knows no such cluster"):
            client.jobs([JobRef(held.id, "nowhere")])
        with pytest.raises(SubmitError, match="knows no such cluster"):
            client.submit(SLEEP, ["-M", "nowhere", *HOLD])

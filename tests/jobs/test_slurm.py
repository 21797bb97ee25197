"""Jobs in a real Slurm's queue, without accounting."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.jobs import cancel_command
from slurmmesh.lab import Lab
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.ids import JobRef

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WaitUntil = Callable[[Callable[[], object]], None]

ENDS = "import sys; print('up', flush=True); sys.exit(int(sys.argv[1]))"
RUNS = "import time; print('up', flush=True); time.sleep(600)"
MESH = """
import os, time
import slurmmesh as sm

class Victim(sm.Actor):
    @sm.endpoint
    def die(self):
        print("dying", flush=True)
        os._exit(3)

again = sm.Supervision(max_restarts=3, within_s=60)
procs = sm.this_job().hosts.spawn_procs({"gpus": 2}, name="victims", supervise=again)
victims = procs.spawn("victim", Victim)
try:
    victims.slice(hosts=1, gpus=0).die.call_one().get()
except sm.SupervisionError:
    print("up", flush=True)
time.sleep(600)
"""
LATER = "--begin=now+1hour"


def is_up(slurm: Any, job_id: str) -> Callable[[], bool]:
    return lambda: "up\n" in slurm.log(job_id)


def test_each_state_of_jobs(slurm: Any, lab: Lab, wait_until: WaitUntil) -> None:
    ends, runs = slurm.script(ENDS, "ends.py"), slurm.script(RUNS, "runs.py")
    good = slurm.submit("-J", "good", ends, "0")
    bad = slurm.submit("-J", "bad", ends, "--", "3")
    waiting = slurm.submit("-N", "2", LATER, runs)
    running = slurm.submit("-N", "2", "--spares=1", "-t", "10", runs)
    wait_until(is_up(slurm, running))
    wait_until(lambda: {slurm.state(good), slurm.state(bad)} == {"COMPLETED", "FAILED"})
    table = slurm.table()
    assert list(table) == [good, bad, waiting, running]
    assert {name: job["state"] for name, job in table.items()} == {
        good: "COMPLETED",
        bad: "FAILED",
        waiting: "PENDING",
        running: "RUNNING",
    }
    assert (table[bad]["exitcode"], table[bad]["jobname"]) == ("3:0", "bad")
    assert (table[waiting]["reason"], table[waiting]["nnodes"]) == ("BeginTime", 2)
    assert "its begin time is not yet there" in table[waiting]["why"]
    assert (table[running]["nnodes"], table[running]["timelimit"]) == (3, 600)
    assert set(slurm.table("--state=R,PD")) == {waiting, running}
    # What waits or runs is shown, however old it is.
    later = [slurm.make_job(f"9{number}", {"exit_code": 0}, name="x") for number in range(2)]
    shown = slurm.run("list", "--limit=1", "-n", "-o", "jobid%9,state")
    assert sorted(shown.stdout.split()[::2]) == sorted([waiting, running, later[1].name])
    assert "3 earlier are not shown" in shown.stderr
    for folder in later:
        shutil.rmtree(folder)
    status = slurm.run("status", waiting, running).stdout
    assert f"job {waiting}  runs.py\n  state       PENDING\n" in status
    assert "  nodes       2 asked for\n" in status
    assert "of 00:10:00, 00:0" in status
    # A cluster whose accounting is asked and fails is what a lab is; the record stays alone.
    lab.run("scancel", running)
    wait_until(lambda: slurm.state(running) == "CANCELLED")


def test_status_shows_meshes_hosts_and_failures(slurm: Any, wait_until: WaitUntil) -> None:
    job_id = slurm.submit("-N2", "--spares=1", slurm.script(MESH))
    wait_until(is_up(slurm, job_id))
    wait_until(lambda: "started again once" in slurm.run("status", job_id).stdout)
    told = slurm.run("status").stdout
    assert "  hosts       3 of 3 up, 1 spare among them\n" in told
    assert "  mesh        victims {hosts: 2, gpus: 2}: 4 ranks: 4 up; started again once\n" in told
    assert "rank 2 of 'victims' on node2" in told
    assert "exited with code 3; a new process after" in told
    (job,) = json.loads(slurm.run("status", "--json", job_id).stdout)["jobs"]
    assert [failure["rank"] for failure in job["failures"]] == [2]
    assert job["failures"][0]["back_s"] > 0
    done = slurm.run("logs", job_id, "--rank", "2", "--mesh", "victims")
    assert done.stdout.endswith("victims[2] | dying\n")
    assert slurm.run("logs", job_id, "--host=node1").stdout == ""
    report = slurm.run("report", job_id)
    assert report.returncode == 0, report.stderr


def test_logs_are_followed_over_a_requeue(slurm: Any, lab: Lab, wait_until: WaitUntil) -> None:
    # Ends by itself only in its second attempt.
    name = slurm.script(
        "import os, time\n"
        "print('up', flush=True)\n"
        "time.sleep(600 if 'attempt-0' in os.environ['SLURMMESH_JOB_FOLDER'] else 0)\n"
    )
    job_id = slurm.submit("--requeue", name)
    follower = slurm.start("logs", "-f", job_id)
    wait_until(is_up(slurm, job_id))
    lab.run("scontrol", "requeue", job_id)
    followed = slurm.finish(follower)
    assert followed.returncode == 0, followed.stderr
    assert followed.stdout.count("up\n") == 2
    assert f"job {job_id} was started again: attempt-1" in followed.stderr
    assert followed.stderr.endswith(f"job {job_id} COMPLETED: ended well\n")
    assert slurm.table()[job_id]["restarts"] == 1
    first = slurm.run("logs", job_id, "--attempt=0")
    assert "attempt-0\nup\n" in first.stdout
    assert "attempts    2: it was started again once" in slurm.run("status", job_id).stdout


def test_an_array_is_told_and_cancelled_by_its_tasks(
    slurm: Any, lab: Lab, wait_until: WaitUntil
) -> None:
    job_id = slurm.submit("--array=0-5%2", slurm.script(RUNS))
    wait_until(is_up(slurm, f"{job_id}_0"))
    wait_until(is_up(slurm, f"{job_id}_1"))
    states = {name: job["state"] for name, job in slurm.table().items()}
    assert states == {
        f"{job_id}_0": "RUNNING",
        f"{job_id}_1": "RUNNING",
        f"{job_id}_[2-5]": "PENDING",
    }
    several = slurm.run("logs", job_id)
    assert several.returncode == 2
    assert f"name one of its tasks: {job_id}_0, {job_id}_1" in several.stderr
    assert slurm.run("logs", f"{job_id}_1").stdout.endswith("up\n")
    done = slurm.run("cancel", f"{job_id}_0")
    assert done.returncode == 0, done.stderr
    assert slurm.state(f"{job_id}_0") == "CANCELLED"
    assert slurm.state(f"{job_id}_1") == "RUNNING"  # one task, not the array
    done = slurm.run("cancel", "--state=PENDING", job_id)
    assert f"job {job_id}_[" in done.stderr
    done = slurm.run("cancel", job_id)
    assert done.stderr.endswith(f"job {job_id} has ended\n")
    assert lab.run("squeue", "-h").stdout == ""
    # Slurm forgets tasks that never started; what was submitted does not.
    states = {job["state"] for job in slurm.table().values()}
    assert states == {"CANCELLED", "UNKNOWN"}


def test_a_heterogeneous_job_is_one_job(slurm: Any, lab: Lab, wait_until: WaitUntil) -> None:
    name = slurm.script(RUNS)
    job_id = slurm.submit("-c", "1", ":", "-N", "2", name)
    wait_until(is_up(slurm, job_id))
    (job,) = slurm.table().values()
    assert (job["jobid"], job["state"]) == (job_id, "RUNNING")
    done = slurm.run("cancel", job_id)
    assert done.returncode == 0, done.stderr
    assert lab.run("squeue", "-h").stdout == ""
    assert slurm.state(job_id) == "CANCELLED"


def test_other_jobs_are_left_alone(slurm: Any, lab: Lab) -> None:
    other = lab.run("sbatch", "--parsable", LATER, "--wrap=true").stdout.strip()
    for command in ("cancel", "status"):
        done = slurm.run(command, other)
        assert done.returncode == 2
        assert f"Slurm knows it: `scontrol show job {other}` tells of it" in done.stderr
    assert other not in slurm.table()
    assert lab.run("squeue", "-h", "-o", "%i").stdout.strip() == other


def test_a_job_whose_number_came_again(slurm: Any, lab: Lab) -> None:
    other = lab.run("sbatch", "--parsable", LATER, "--wrap=true").stdout.strip()
    slurm.make_job(other, {"exit_code": 3}, name="older", submitted=1_000_000.0)
    job = slurm.table()[other]
    assert (job["state"], job["jobname"]) == ("FAILED", "older")
    done = slurm.run("cancel", other)
    assert "there is nothing to end (FAILED" in done.stderr
    assert lab.run("squeue", "-h", "-o", "%i").stdout.strip() == other


def test_a_job_that_waits_is_cancelled(slurm: Any) -> None:
    job_id = slurm.submit(LATER, slurm.script(RUNS))
    done = slurm.run("cancel", f"{job_id}", "--no-wait")
    assert f"job {job_id} is being cancelled; it was waiting" in done.stderr
    assert slurm.state(job_id) == "CANCELLED"
    shutil.rmtree(slurm.jobs / job_id)
    assert slurm.table() == {}


def test_a_state_of_a_newer_slurm_is_no_end(
    slurm: Any, lab: Lab, wait_until: WaitUntil, tmp_path: Path
) -> None:
    """A double in front of squeue, for want of a newer Slurm: it has another word for RUNNING."""
    squeue = shutil.which("squeue", path=slurm.environ["PATH"])
    (tmp_path / "bin").mkdir()
    newer = tmp_path / "bin" / "squeue"
    newer.write_text(f'#!/bin/bash\n{squeue} "$@" | sed s/RUNNING/ORBITING/\n')
    newer.chmod(0o755)
    job_id = slurm.submit(slurm.script(RUNS))
    wait_until(is_up(slurm, job_id))
    path = f"{newer.parent}:{slurm.environ['PATH']}"
    slurm.environ = {**slurm.environ, "PATH": path}
    job = slurm.table()[job_id]
    assert (job["state"], job["nodelist"]) == ("UNKNOWN", "node1")
    assert "not known here" in job["why"]
    follower = slurm.start("logs", "-f", job_id)
    assert [follower.stdout.readline() for _ in range(2)][1] == "up\n"
    done = slurm.run("cancel", "--name=program.py")
    assert f"job {job_id} is being cancelled; it was running" in done.stderr
    assert done.stderr.endswith(f"job {job_id} has ended\n")
    assert f"job {job_id} CANCELLED" in slurm.finish(follower).stderr


def test_the_wait_for_an_end_has_an_end(
    slurm: Any, lab: Lab, wait_until: WaitUntil, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    job_id = slurm.submit(slurm.script(RUNS))
    wait_until(is_up(slurm, job_id))
    for name, value in {**slurm.environ, "SLURMMESH_STOP_GRACE_S": "0.1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(slurm.folder)
    monkeypatch.setattr(cancel_command, "_KILL_WAIT_S", 0.1)
    cancel = SlurmClient.cancel

    def cancel_and_go(client: SlurmClient, ref: JobRef) -> None:
        cancel(client, ref)
        lab.stop_slurmctld()

    monkeypatch.setattr(SlurmClient, "cancel", cancel_and_go)
    try:
        assert cancel_command.main([job_id]) == 3
    finally:
        lab.restart_slurmctld()
    told = capsys.readouterr().err
    assert f"job {job_id} was told to end, but has not within" in told
    assert "does not answer; `slurmmesh status" in told


def test_slurm_is_away(slurm: Any, lab: Lab, wait_until: WaitUntil) -> None:
    job_id = slurm.submit("-N2", slurm.script(RUNS))
    wait_until(is_up(slurm, job_id))
    conf = slurm.folder / "slurm.conf"  # with which a client gives up after a second, not four
    conf.write_text(re.sub("MessageTimeout=.*", "MessageTimeout=2", lab.conf.read_text()))
    quick = {"SLURMMESH_SLURM_PATIENCE_S": "0.5", "SLURM_CONF": str(conf)}
    slurm.environ = {**slurm.environ, **quick}
    lab.stop_slurmctld()
    try:
        done = slurm.run("list", "--json")
        assert "does not answer; this is from the job folders" in done.stderr
        (job,) = json.loads(done.stdout)["jobs"]
        assert job["state"] == "UNKNOWN"
        assert "slurmctld) does not answer, and its folder has no record" in job["why"]
        assert slurm.run("logs", job_id).stdout.endswith("up\n")
        done = slurm.run("cancel", job_id)
        assert done.returncode == 3
        assert "Nothing was cancelled" in done.stderr
    finally:
        lab.restart_slurmctld()
    assert slurm.state(job_id) == "RUNNING"

"""Jobs on this machine: seen, followed and ended by the commands on jobs."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from slurmmesh.record import this_process

WaitUntil = Callable[[Callable[[], object]], None]

# Ends in order on SIGTERM, and says so.
ORDERLY = """
import time
import slurmmesh as sm

class Talker(sm.Actor):
    @sm.endpoint
    def say(self, text):
        print(text, flush=True)

hosts = sm.this_job().hosts
talkers = hosts.spawn_procs({"gpus": 2}, name="talkers").spawn("talker", Talker)
talkers.say.call("from a rank").get()
print("up", flush=True)
try:
    time.sleep(600)
finally:
    print("stopped in order", flush=True)
"""
STUBBORN = """
import signal, time
import slurmmesh as sm
sm.this_job().hosts
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
while True:
    time.sleep(600)
"""


def submit(shell: Any, wait_until: WaitUntil, text: str, *words: str) -> tuple[Any, str]:
    process = shell.start("submit", "--cluster=local", "--parsable", *words, shell.script(text))
    assert process.stdout is not None
    job_id = process.stdout.readline().strip()
    log = shell.jobs / job_id / "controller.log"
    wait_until(lambda: log.exists() and "up\n" in log.read_text())
    return process, job_id


@pytest.mark.slow
def test_a_local_job_from_start_to_cancel(shell: Any, wait_until: WaitUntil) -> None:
    process, job_id = submit(shell, wait_until, ORDERLY, "-N2")
    job = shell.table()[job_id]
    assert (job["state"], job["nnodes"], job["cluster"]) == ("RUNNING", 2, "local")
    assert job["program"] == "program.py"
    status = shell.run("status").stdout
    assert f"job {job_id}  program.py\n  state       RUNNING for 00:00:" in status
    assert "  mesh        talkers {hosts: 2, gpus: 2}: 4 ranks: 4 up\n" in status
    later = shell.make_job("5", {"exit_code": 0}, name="x")
    assert set(shell.table("--limit=1")) == {"5", job_id}  # it runs, however old it is
    shutil.rmtree(later)
    follower = shell.start("logs", "--follow", job_id)
    lines = [follower.stdout.readline() for _ in range(2)]
    assert lines[1:] == ["up\n"]
    assert shell.run("logs", job_id, "--rank=2").stdout.endswith("talkers[2] | from a rank\n")
    done = shell.run("cancel", job_id)
    assert done.returncode == 0
    assert f"job {job_id} is being ended" in done.stderr
    assert done.stderr.endswith(f"job {job_id} has ended\n")
    rest = follower.stdout.read()
    assert "stopped in order\n" in rest
    assert rest.count("from a rank") == 4
    followed = shell.finish(follower)
    assert followed.returncode == 0
    assert f"job {job_id} FAILED: failed with exit code 143" in followed.stderr
    assert shell.finish(process).returncode == 143
    assert shell.state(job_id) == "FAILED"
    again = shell.run("cancel", job_id)
    assert (again.returncode, "there is nothing to end" in again.stderr) == (0, True)


@pytest.mark.slow
def test_one_that_does_not_stop_is_killed(shell: Any, wait_until: WaitUntil) -> None:
    shell.environ = {**shell.environ, "SLURMMESH_STOP_GRACE_S": "1"}
    process, job_id = submit(shell, wait_until, STUBBORN)
    done = shell.run("cancel", job_id)
    assert f"job {job_id} does not stop by itself: killing it" in done.stderr
    assert shell.finish(process).returncode == 137
    job = shell.table()[job_id]
    assert job["state"] == "UNKNOWN"
    assert "left no record of how it ended" in job["why"]


@pytest.mark.slow
def test_a_filter_finds_them_and_ctrl_c_ends_a_follower(
    shell: Any, wait_until: WaitUntil, press_ctrl_c: Callable[[Any], None]
) -> None:
    process, job_id = submit(shell, wait_until, ORDERLY)
    follower = shell.start("logs", "-f", job_id)
    assert follower.stdout.readline()
    press_ctrl_c(follower)
    assert shell.finish(follower).returncode == 130
    reader_gone = shell.start("logs", "-f", job_id)
    assert reader_gone.stdout.readline()
    reader_gone.stdout.close()
    assert reader_gone.wait(60) == 141
    nothing = shell.run("cancel", "--name=another.py")
    assert "no job of yours is like that" in nothing.stderr
    done = shell.run("cancel", "--name=program.py", "--state=R", "--no-wait")
    assert done.returncode == 0, done.stderr
    assert shell.finish(process).returncode == 143


def test_a_process_that_took_over_the_pid_is_left_alone(shell: Any) -> None:
    """A double, since no pid can be made to come again: a record with the pid of this test."""
    own = {"pid": os.getpid(), "process": "x:y:1", "host": "elsewhere", "started": 1.0}
    folder = shell.make_job("local-20260101-000000-1", own)
    done = shell.run("cancel", folder.name)
    assert done.returncode == 2
    assert "started on elsewhere" in done.stderr
    machine = this_process()["process"].rpartition(":")[0]
    (folder / "job.json").write_text(json.dumps({**own, "process": f"{machine}:1"}))
    done = shell.run("cancel", folder.name)
    assert done.returncode == 0
    assert "there is nothing to end" in done.stderr


GIVES_UP = """
import os
import subprocess
import sys
import slurmmesh as sm
from slurmmesh.errors import RestartBudgetSpent

class Victim(sm.Actor):
    @sm.endpoint
    def die(self):
        os._exit(3)

rules = sm.Supervision(max_restarts=1, within_s=60)
procs = sm.this_job().hosts.spawn_procs(name="victims", supervise=rules)
victims = procs.spawn("victim", Victim)
given_up = False
while not given_up:  # a call may still fail by the death before
    try:
        victims.die.call().get()
    except sm.SupervisionError as error:
        given_up = isinstance(error, RestartBudgetSpent)
"""


@pytest.mark.slow
def test_a_mesh_that_was_given_up(shell: Any) -> None:
    done = shell.run("submit", "--cluster=local", "--parsable", shell.script(GIVES_UP))
    assert done.returncode == 0, done.stderr
    told = shell.run("status").stdout
    assert "  state       COMPLETED" in told
    assert "  mesh        victims {hosts: 1}: 1 rank: 1 failed (rank 0); started again once" in told
    assert told.count("exited with code 3") == 2


@pytest.mark.slow
def test_a_program_that_was_not_submitted(shell: Any, wait_until: WaitUntil) -> None:
    shell.script("import slurmmesh as sm; sm.job_or_local(); input()")
    environ = {**shell.environ, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, "program.py"], cwd=shell.folder, env=environ, stdin=subprocess.PIPE
    )
    try:
        wait_until(lambda: [job["state"] for job in shell.table().values()] == ["RUNNING"])
    finally:
        process.communicate(b"\n")
    (job,) = shell.table().values()
    assert (job["state"], job["jobname"]) == ("UNKNOWN", "program.py")

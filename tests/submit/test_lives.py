"""Jobs with more than one life: started again, many at once, of several components."""

from __future__ import annotations

import ast
import json
import shutil
from collections.abc import Callable
from typing import Any

import pytest

from slurmmesh.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

WaitUntil = Callable[[Callable[[], object]], None]

TWO_LIVES = """
import os, signal, time
from pathlib import Path
life = int(os.environ.get("SLURM_RESTART_COUNT", 0))
print("life", life, flush=True)
if life == 0:
    Path("first life").touch()
    while True:
        time.sleep(1)
"""


def attempts(slurm: Any, job_id: str) -> dict[str, str]:
    return {
        path.parent.name: path.read_text() for path in slurm.jobs.glob(f"{job_id}/*/controller.log")
    }


@pytest.mark.parametrize("option", ["--wait", "--follow"])
def test_a_requeued_job_is_waited_for_and_has_a_folder_for_each_attempt(
    slurm: Any, lab: Lab, wait_until: WaitUntil, option: str
) -> None:
    process = slurm.start("--requeue", option, slurm.script(TWO_LIVES))
    wait_until((slurm.folder / "first life").exists)
    (job_id,) = lab.run("squeue", "-h", "-o", "%i").stdout.split()
    lab.run("scontrol", "requeue", job_id)
    done = slurm.finish(process)
    assert done.returncode == 0, done.stderr
    assert f"job {job_id} was requeued: attempt 1" in done.stderr
    assert f"job {job_id} ended well" in done.stderr
    logs = attempts(slurm, job_id)
    assert sorted(logs) == ["attempt-0", "attempt-1"]
    assert "life 0" in logs["attempt-0"]
    assert "life 1" in logs["attempt-1"]
    if option == "--follow":
        assert "life 0\n" in done.stdout
        assert "life 1\n" in done.stdout


@pytest.mark.parametrize(
    ("option", "code", "told"),
    [("--requeue", 0, "was requeued: attempt 1"), ("--no-requeue", 7, "was preempted by a job")],
)
def test_a_preempted_job_runs_again_if_it_may(
    lab: Lab, slurm: Any, wait_until: WaitUntil, option: str, code: int, told: str
) -> None:
    """Its nodes are taken by a job of a partition that ranks higher, then given back."""
    words = ["-p", "low", "-N4", "--exclusive", option, "--wait"]
    process = slurm.start(*words, slurm.script(TWO_LIVES))
    wait_until((slurm.folder / "first life").exists)
    lab.run("sbatch", "-p", "main", "-N4", "--exclusive", "-o/dev/null", "--wrap=true")
    done = slurm.finish(process)
    assert done.returncode == code, done.stderr
    assert told in done.stderr


def test_a_job_that_lost_its_controllers_node_runs_again(
    slurm: Any, lab: Lab, wait_until: WaitUntil
) -> None:
    process = slurm.start("-N2", "--requeue", "--wait", slurm.script(TWO_LIVES))
    wait_until((slurm.folder / "first life").exists)
    job_id, node = lab.run("squeue", "-h", "-o", "%i %B").stdout.split()
    lab.kill_node(node)
    try:
        done = slurm.finish(process)
    finally:
        lab.start_node(node)
    assert done.returncode == 0, done.stderr
    assert f"{node}, on which its controller ran, is down" in done.stderr
    assert f"job {job_id} was requeued: attempt 1" in done.stderr
    assert "life 1" in attempts(slurm, job_id)["attempt-1"]


def test_a_signal_before_the_time_limit_reaches_the_program(slurm: Any) -> None:
    """Slurm sends it up to a minute early; the hosts, which do not expect it, live on."""
    name = slurm.script(
        """
import signal
import slurmmesh as sm

class Host(sm.Actor):
    @sm.endpoint
    def lives(self):
        return True

caught = []
signal.signal(signal.SIGUSR1, lambda signum, frame: caught.append(signum))
hosts = sm.this_job().hosts.spawn_procs(name="procs").spawn("host", Host)
while not caught:
    signal.pause()
print("caught", caught, list(hosts.lives.call().get().values()))
"""
    )
    done = slurm.run("--wait", "-N2", "-t", "1", "--signal", "USR1@60", name)
    assert done.returncode == 0, done.stderr + slurm.log()
    assert "caught [10] [True, True]" in slurm.log()


def test_an_array(slurm: Any) -> None:
    name = slurm.script(
        """
import os, sys
import slurmmesh as sm
print("task", os.environ["SLURM_ARRAY_TASK_ID"], sm.this_job().id)
sys.exit(5 if os.environ["SLURM_ARRAY_TASK_ID"] == "3" else 0)
"""
    )
    done = slurm.run("--wait", "--array", "1,3-5:2%2", name)
    assert done.returncode == 5, done.stderr
    array = done.stdout.split()[2]
    assert f"job {array}: 1 of 3 tasks failed (1 with code 5); the first: job {array}_3" in (
        done.stderr
    )
    assert f"{array}_3/attempt-0/controller.log" in done.stderr
    for task in (1, 3, 5):
        assert f"task {task} {array}_{task}\n" in slurm.log(f"{array}_{task}")
    kept = json.loads((slurm.jobs / array / "submit.json").read_text())
    assert (kept["id"], kept["options"]["array"]) == (array, "1,3-5:2%2")
    assert slurm.run("--wait", "--array=7", slurm.script("", "good.py")).returncode == 0


def test_tasks_that_can_never_start_are_cancelled(slurm: Any, lab: Lab) -> None:
    done = slurm.run("--wait", "--array=0-2", "-c", "1000", slurm.script(""))
    assert done.returncode == 3, done.stderr
    assert "can never start, so it was cancelled" in done.stderr
    assert not lab.run("squeue", "-h").stdout


def test_a_controller_with_resources_of_its_own(slurm: Any, lab: Lab) -> None:
    name = slurm.script(
        """
import os
import shutil
import slurmmesh as sm

class Host(sm.Actor):
    @sm.endpoint
    def node(self):
        return os.environ["SLURMD_NODENAME"]

job = sm.this_job()
actors = job.hosts.spawn_procs(name="procs").spawn("host", Host)
here = list(actors.node.call().get().values())
print("told", job.id, [os.environ["SLURMD_NODENAME"]], job.hosts.names, here, job.spares.names)
"""
    )
    done = slurm.run(
        *("-p", "low", "-c", "3", "--mem=100M", ":", "-p", "main", "-N2", "--spares=1"),
        *("--gpus-per-node=2", "-J", "het", "--wait", name),
    )
    assert done.returncode == 0, done.stderr + slurm.log()
    job_id = done.stdout.split()[2]
    _, _, told = slurm.log().partition(f"told {job_id} ")
    controller, names, nodes, spares = ast.literal_eval(f"[{told.strip().replace('] [', '], [')}]")
    assert names == nodes
    assert len({*controller, *names, *spares}) == 4
    asked = lab.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%i|%P|%D|%j").stdout
    assert sorted(asked.split()) == [f"{job_id}+0|low|1|het", f"{job_id}+1|main|3|het"]


def test_files_of_ones_own_for_the_output(slurm: Any) -> None:
    name = slurm.script(
        "import sys; print('to out'); print('to err', file=sys.stderr); sys.exit('slurmmesh: x')"
    )
    words = ["--wait", "-o", "out %j.txt", "-e", "err %j.txt"]
    done = slurm.run(*words, name)
    assert done.returncode == 1, done.stderr
    job_id = done.stdout.split()[2]
    assert "to out\n" in (slurm.folder / f"out {job_id}.txt").read_text()
    assert "to err\n" in (slurm.folder / f"err {job_id}.txt").read_text()
    attempt = slurm.jobs / job_id / "attempt-0"
    assert (attempt / "controller.log").resolve() == slurm.folder / f"out {job_id}.txt"
    assert "its last line: slurmmesh: x" in done.stderr
    done = slurm.run("--wait", "-o", "/dev/null", name)
    assert "to out\nto err\nslurmmesh: x\n" in slurm.log(done.stdout.split()[2])


def test_files_of_ones_own_are_in_the_working_folder(slurm: Any) -> None:
    folder = slurm.folder / 'a b"\n%j'
    folder.mkdir()
    (folder / "program.py").write_text("print('here')")
    done = slurm.run("--wait", "-o", "out %j.txt", "--chdir", str(folder), "program.py")
    assert done.returncode == 0, done.stderr
    assert "here\n" in (folder / f"out {done.stdout.split()[2]}.txt").read_text()
    done = slurm.run("-e", "no-such/err.txt", slurm.script(""))
    assert done.returncode == 2
    assert "--error 'no-such/err.txt': there is no folder" in done.stderr


def test_a_job_that_does_not_come_to_its_log(slurm: Any, lab: Lab, wait_until: WaitUntil) -> None:
    """Its folder cannot be made on the node: what Slurm wrote is shown instead."""
    process = slurm.start("--wait", "--begin=now+1hour", slurm.script(""))
    wait_until(lambda: bool(list(slurm.jobs.glob("*/submit.json"))))
    (folder,) = slurm.jobs.glob("[0-9]*")
    shutil.rmtree(folder)
    folder.write_text("a file in its place")
    lab.run("scontrol", "update", f"jobid={folder.name}", "starttime=now")
    done = slurm.finish(process)
    assert done.returncode == 6
    assert f"its output: {folder}.out\n" in done.stderr
    assert "cannot make the job folder" in done.stderr


def test_slurm_picks_the_nodes(slurm: Any) -> None:
    name = slurm.script(
        "import slurmmesh as sm; j = sm.this_job(); print('got', j.hosts.names, j.spares)"
    )
    for words, hosts in (
        (["-w", "node[2-3]"], 2),
        (["-N", "2-3"], 2),
        (["-n", "130", "-x", "node1,long-gone"], 3),
    ):
        done = slurm.run("--wait", *words, name)
        assert done.returncode == 0, done.stderr
        log = slurm.log(done.stdout.split()[2])
        names = ast.literal_eval(log.partition("got ")[2].partition("]")[0] + "]")
        assert len(names) >= hosts
        assert "] None\n" in log
        if "node[2-3]" in words:
            assert names == ["node2", "node3"]
        if "node1,long-gone" in words:
            assert "node1" not in names


def test_slurm_is_asked_when_a_job_would_start(slurm: Any, lab: Lab) -> None:
    done = slurm.run("--cluster=slurm", "--test-only", "-N3", "-Jtested", slurm.script(""))
    assert (done.returncode, done.stderr) == (0, "")
    assert "to start at" in done.stdout
    assert "node[1-3]" in done.stdout
    assert not lab.run("squeue", "-h", "-t", "all", "-n", "tested").stdout
    done = slurm.run("--test-only", "-p", "nowhere", slurm.script(""))
    assert done.returncode == 3


def test_json(slurm: Any) -> None:
    done = slurm.run("--json", "--wait", "-N2", "--comment=x y", slurm.script(""))
    told = json.loads(done.stdout)
    assert told["folder"] == str(slurm.jobs / told["id"])
    assert (told["nodes"], told["name"], told["options"]["comment"]) == (2, "program.py", "x y")


def test_the_shells_before_the_program(slurm: Any) -> None:
    name = slurm.script("import os; print(ascii([os.environ[n] for n in ('A', 'B', 'C')]))")
    done = slurm.run(
        *("--wait", "--setup", "export A='from setup'", "--setup", '[ -n "$A" ] # it\'s'),
        *("--env", 'B=it\'s\n"$A"', "--env", "C", name),
        C="here,1",
    )
    assert done.returncode == 0, done.stderr + slurm.log()
    assert ascii(["from setup", 'it\'s\n"$A"', "here,1"]) in slurm.log()
    done = slurm.run("--wait", "--setup", "module load no-such-thing", name)
    assert done.returncode == 6
    assert "--setup module load no-such-thing: failed" in slurm.log(done.stdout.split()[2])
    done = slurm.run("--wait", "--setup", "exit 0", name)
    assert done.returncode == 6
    assert "ended the script before the program" in slurm.log(done.stdout.split()[2])
    shadows = ["--env", "job_id=5", "--env", "job_folder=/nowhere", "--setup", "python=/bin/false"]
    done = slurm.run("--wait", *shadows, *("--env", "A=", "--env", "B=", "--env", "C=", name))
    assert done.returncode == 0, done.stderr
    done = slurm.run("--setup", "echo 'no end", name)
    assert done.returncode == 2
    assert "--setup or --template: bash: " in done.stderr


def test_the_template_of_slingshot_names_its_network(slurm: Any) -> None:
    """This machine has none: that the job says so shows that it was looked for."""
    done = slurm.run("--wait", "-N2", "--template", "mi300-slingshot", slurm.script(""))
    assert done.returncode == 6, done.stderr
    assert "no interface" in slurm.log()
    assert "hsn" in slurm.log()

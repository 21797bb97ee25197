"""Jobs in a real Slurm's queue."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab

pytestmark = pytest.mark.slurm

WaitUntil = Callable[[Callable[[], object]], None]
CtrlC = Callable[[subprocess.Popen[str]], None]

ORDERLY = """
import time
import slurmmesh as sm
sm.this_job().hosts
print("up", flush=True)
try:
    time.sleep(600)
finally:
    print("stopped in order", flush=True)
"""
LATER = "--begin=now+1hour"


def queue(lab: Lab) -> list[str]:
    return lab.run("squeue", "-h", "-o", "%i").stdout.split()


def state(lab: Lab, job_id: str) -> str:
    return lab.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T").stdout.strip()


def test_a_job_from_submit_to_end(slurm: Any, lab: Lab) -> None:
    name = slurm.script(
        """
import os, sys
import slurmmesh as sm
job = sm.this_job()
print(job.id, job.cluster, job.hosts.names, job.spares.names, sys.argv, os.getcwd())
print(sorted(f"{k}={v}" for k, v in os.environ.items() if k.startswith("SLURMMESH_")))
""",
        "my program.py",
    )
    done = slurm.run(
        *("-N2", "--spares", "1", "--gpus-per-node=4", "-c", "3", "-t", "10", "-p", "low"),
        *("-J", 'my "run" #1', "--comment=it's", "--wait", name, "--", "a b", "c\nd"),
    )
    assert done.returncode == 0, done.stderr + slurm.log()
    (folder,) = (path for path in slurm.jobs.iterdir() if path.is_dir())
    job_id = folder.name
    assert done.stdout == f"submitted job {job_id}\nlogs: {folder}\n"
    assert "Slurm answers: submitting to it" in done.stderr
    assert f"job {job_id} ended well" in done.stderr
    log = slurm.log()
    hosts = "['node1', 'node2'] ['node3']"
    assert f"{job_id} slurm {hosts} ['{name}', 'a b', 'c\\nd'] {slurm.folder}" in log
    for variable in ("NODES=2", "SPARES=1", "GPUS_PER_NODE=4"):
        assert f"'SLURMMESH_{variable}'" in log
    shown = lab.run("squeue", "-h", "-t", "all", "-j", job_id, "-o", "%T|%D|%P|%l|%j|%k").stdout
    assert shown == 'COMPLETED|3|low|10:00|my "run" #1|it\'s\n'
    assert "Restarts=0" in lab.run("scontrol", "show", "job", job_id).stdout
    attempt = folder / "attempt-0"
    record = json.loads((attempt / "job.json").read_text())
    assert (record["job_id"], record["exit_code"]) == (job_id, 0)
    modes = [path.stat().st_mode & 0o777 for path in (slurm.jobs, folder, attempt)]
    assert modes == [0o700, 0o700, 0o700]
    assert json.loads((folder / "submit.json").read_text())["name"] == 'my "run" #1'
    kept = (folder / "script.sh").read_text()
    assert kept in lab.run("scontrol", "write", "batch_script", job_id, "-").stdout
    assert str(attempt / "controller.log") in (slurm.jobs / f"{job_id}.out").read_text()


@pytest.mark.slow
def test_files_of_the_user_hide_no_module_of_pythons(slurm: Any) -> None:
    name = slurm.program_among_namesakes()
    done = slurm.run("--wait", "-N2", name)
    assert done.returncode == 0, done.stderr + slurm.log()
    assert "found beside it ['found beside it', 'found beside it']" in slurm.log()


def test_without_wait_it_returns_at_once(slurm: Any, lab: Lab) -> None:
    done = slurm.run("--parsable", LATER, slurm.script(""))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() in queue(lab)


@pytest.mark.slow
def test_follow_shows_the_output(slurm: Any) -> None:
    done = slurm.run("--cluster=slurm", "--follow", slurm.script("print('from the program')"))
    assert done.returncode == 0, done.stderr
    assert "from the program\n" in done.stdout
    assert "job ended with exit code 0" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "code", "told"),
    [
        ("raise SystemExit(7)", 7, "failed with exit code 7"),
        ("1/0", 1, "failed with exit code 1"),
        (
            "import slurmmesh as sm; sm.local_hosts(0)",
            2,
            "slurmmesh: its error: ",
        ),
        ("import os, signal; os.kill(os.getpid(), signal.SIGKILL)", 137, "without a record"),
        ("import os; os._exit(3)", 3, "without a record"),
    ],
)
def test_wait_exits_with_the_jobs_result(slurm: Any, program: str, code: int, told: str) -> None:
    done = slurm.run("--wait", slurm.script(program))
    assert done.returncode == code, done.stderr
    assert told in done.stderr
    assert "controller.log" in done.stderr


@pytest.mark.slow
def test_scancel_reaches_the_controller_which_stops_in_order(
    slurm: Any, lab: Lab, wait_until: WaitUntil
) -> None:
    process = slurm.start("--wait", "-N2", slurm.script(ORDERLY))
    wait_until(lambda: "up" in slurm.log())
    (job_id,) = queue(lab)
    lab.run("scancel", job_id)
    done = slurm.finish(process)
    assert done.returncode == 4
    assert f"job {job_id} was cancelled" in done.stderr
    assert "stopped in order" in slurm.log()
    assert (
        json.loads((slurm.jobs / job_id / "attempt-0" / "job.json").read_text())["exit_code"] == 143
    )
    assert state(lab, job_id) == "CANCELLED"


@pytest.mark.slow  # Slurm takes its time to see that a node is down
def test_the_loss_of_the_controllers_node_ends_the_job(slurm: Any, wait_until: WaitUntil) -> None:
    with Lab(nodes=3, slurmd_timeout_s=3) as lab:
        environ = {"SLURM_CONF": str(lab.conf)}
        process = slurm.start("--wait", "-N3", slurm.script(ORDERLY), **environ)
        wait_until(lambda: "up" in slurm.log())
        (job_id,) = queue(lab)
        lab.kill_node("node1")
        done = slurm.finish(process)
        assert done.returncode == 4, done.stderr
        assert f"job {job_id} lost the node that its controller ran on" in done.stderr
        wait_until(lambda: state(lab, job_id) == "CANCELLED")
        assert {lab.wait_state(node, "idle") for node in ("node2", "node3")} == {"idle"}


@pytest.mark.slow  # Slurm looks at time limits every half minute
def test_a_time_limit_is_told(slurm: Any, lab: Lab, wait_until: WaitUntil) -> None:
    process = slurm.start("--wait", slurm.script(ORDERLY))
    wait_until(lambda: "up" in slurm.log())
    (job_id,) = queue(lab)
    lab.run("scontrol", "update", f"jobid={job_id}", "timelimit=0:01")
    lab.run("scontrol", "update", f"jobid={job_id}", "endtime=now")
    done = slurm.finish(process)
    assert done.returncode == 4
    assert "reached its time limit" in done.stderr
    assert "stopped in order" in slurm.log()


def test_a_job_that_is_cancelled_while_it_waits(
    slurm: Any, lab: Lab, wait_until: WaitUntil
) -> None:
    process = slurm.start("--wait", LATER, slurm.script(""))
    wait_until(lambda: queue(lab))
    (job_id,) = queue(lab)
    lab.run("scancel", job_id)
    done = slurm.finish(process)
    assert done.returncode == 4
    assert f"job {job_id} was cancelled while it was waiting" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--wait", "--follow"])
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_while_it_waits_cancels_it(
    slurm: Any, lab: Lab, wait_until: WaitUntil, option: str, signum: int, code: int
) -> None:
    process = slurm.start(option, LATER, slurm.script(""))
    wait_until(lambda: queue(lab))
    (job_id,) = queue(lab)
    assert process.stdout is not None
    wait_until(lambda: "submitted job" in process.stdout.readline())
    os.killpg(process.pid, signum)
    done = slurm.finish(process)
    assert done.returncode == code
    assert f"cancelling job {job_id}" in done.stderr
    assert f"job {job_id} is cancelled" in done.stderr
    assert state(lab, job_id) == "CANCELLED"


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--wait", "--follow"])
def test_ctrl_c_while_it_runs_cancels_it(
    slurm: Any, lab: Lab, wait_until: WaitUntil, press_ctrl_c: CtrlC, option: str
) -> None:
    process = slurm.start(option, "-N2", slurm.script(ORDERLY))
    wait_until(lambda: "up" in slurm.log())
    (job_id,) = queue(lab)
    press_ctrl_c(process)
    done = slurm.finish(process)
    assert done.returncode == 130
    assert f"job {job_id} is cancelled" in done.stderr
    assert "stopped in order" in slurm.log()
    assert state(lab, job_id) == "CANCELLED"


def test_ctrl_c_while_sbatch_runs_cancels_what_it_submits(
    slurm: Any, lab: Lab, wait_until: WaitUntil, press_ctrl_c: CtrlC
) -> None:
    """The sbatch of this site is slow: it is given the time to say which job it made."""
    folder = slurm.folder / "bin"
    folder.mkdir()
    (folder / "sbatch").write_text(
        f"#!/bin/bash\ntouch {folder}/called\n"
        f'until [ -e {folder}/go ]; do sleep 0.05; done\nexec /usr/bin/sbatch "$@"\n'
    )
    (folder / "sbatch").chmod(0o755)
    process = slurm.start(
        "--wait", LATER, slurm.script(""), PATH=f"{folder}:{slurm.environ['PATH']}"
    )
    wait_until((folder / "called").exists)
    press_ctrl_c(process)
    (folder / "go").touch()
    done = slurm.finish(process)
    assert done.returncode == 130
    job_id = done.stdout.split()[2]
    assert f"job {job_id} is cancelled" in done.stderr
    assert not queue(lab)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            ["-p", "nowhere"],
            "or has no default one\n  Slurm said: Batch job submission failed: Invalid",
        ),
        (["--gpus-per-node=9"], "no such nodes, or not so many\n  Slurm said: Batch job subm"),
        (["-c", "1000"], "can never start, so it was cancelled\n  Slurm said: PartitionConfig"),
        (["-N", "99"], "the default partition has 4 nodes, but 99 are asked for"),
        (["-N", "4", "-p", "low,main", "--spares=1"], "partition low,main has 4 nodes, but 5 are"),
        (["--sbatch=--no-such-option"], "an option or its value\n  Slurm said: unrecognized opt"),
    ],
)
def test_what_slurm_refuses(slurm: Any, lab: Lab, words: list[str], told: str) -> None:
    done = slurm.run(*words, slurm.script(""))
    assert done.returncode == 3, done.stderr
    assert told in done.stderr
    assert done.stderr.count("slurmmesh: error: ") == 1
    assert done.stdout == ""
    assert not queue(lab)


@pytest.mark.slow
def test_from_a_folder_with_a_hostile_name(slurm: Any) -> None:
    slurm.folder = slurm.folder / "a b'\"$x\nö"
    slurm.folder.mkdir()
    name = slurm.script("import os, sys; print(ascii(os.getcwd()), ascii(sys.argv))", "ö 'x'.py")
    done = slurm.run("--wait", name, "--", "ä\n", LC_ALL="C")
    assert done.returncode == 0, done.stderr + slurm.log()
    assert f"{str(slurm.folder)!a} {[name, 'ä' + chr(10)]!a}" in slurm.log()


@pytest.mark.slow
def test_a_submit_from_inside_a_job_with_a_hostile_shell(slurm: Any, lab: Lab) -> None:
    slurm.script(
        """
import json, os
told = {k: v for k, v in os.environ.items() if k.startswith(("SL", "SB", "RO"))}
print("inner", json.dumps(told))
""",
        "inner.py",
    )
    outer = slurm.script(
        f"""
import os, subprocess, sys
os.environ |= {{"SBATCH_PARTITION": "low", "SLURM_MEM_PER_CPU": "7", "SQUEUE_FORMAT": "junk"}}
command = ["{sys.executable}", "-m", "slurmmesh.submit", "--wait", "-N2", "inner.py"]
done = subprocess.run(command, capture_output=True, text=True)
print(done.stdout, done.stderr, flush=True)
sys.exit(done.returncode)
"""
    )
    done = slurm.run("--wait", "-N1", "--gpus-per-node=2", "-c2", outer)
    outer_log = "".join(path.read_text() for path in slurm.jobs.glob("*/attempt-0/controller.log"))
    assert done.returncode == 0, outer_log
    assert "not used: SBATCH_PARTITION of your shell" in outer_log
    (line,) = (text for text in outer_log.splitlines() if text.startswith("inner "))
    inner = json.loads(line.removeprefix("inner "))
    assert inner["SLURMMESH_NODES"] == "2"
    assert inner["SLURMMESH_GPUS_PER_NODE"] == "0"
    assert inner["SLURM_JOB_PARTITION"] == "main"
    assert inner["SLURM_JOB_NUM_NODES"] == "2"
    assert not {"ROCR_VISIBLE_DEVICES", "SLURM_MEM_PER_CPU", "SLURM_CPUS_PER_TASK"} & inner.keys()


@pytest.mark.slow
def test_a_setting_picks_the_network_of_the_job(slurm: Any) -> None:
    name = slurm.script("import slurmmesh as sm; print('at', sm.this_job().hosts.addresses)")
    done = slurm.run("--wait", "-N2", name, SLURMMESH_INTERFACE="127.0.0.0/8")
    assert done.returncode == 0, done.stderr + slurm.log()
    assert "at ['127.0.0.1', '127.0.0.1']" in slurm.log()


@pytest.mark.slow
def test_a_network_that_the_node_does_not_have(slurm: Any) -> None:
    name = slurm.script("")
    done = slurm.run("--wait", "-N2", name, SLURMMESH_INTERFACE="nosuch0")
    assert done.returncode == 6
    assert "interface nosuch0 (--interface, SLURMMESH_INTERFACE): on node" in slurm.log()
    assert "lo 127.0.0.1" in slurm.log()
    done = slurm.run("--wait", "-N2", name, SLURMMESH_INTERFACE="10.0.0.0/33")
    assert done.returncode == 2
    assert "SLURMMESH_INTERFACE='10.0.0.0/33' is no network" in done.stderr


@pytest.mark.slow
def test_slurm_goes_down_and_comes_back_while_we_wait(
    slurm: Any, lab: Lab, wait_until: WaitUntil
) -> None:
    name = slurm.script(
        """
import time
from pathlib import Path
print("up", flush=True)
while not Path("go on").exists():
    time.sleep(0.02)
"""
    )
    process = slurm.start("--wait", name, SLURMMESH_SLURM_TIMEOUT_S="2")
    wait_until(lambda: "up" in slurm.log())
    lab.stop_slurmctld()
    assert process.stderr is not None
    wait_until(lambda: "does not answer" in process.stderr.readline())
    lab.restart_slurmctld()
    (slurm.folder / "go on").touch()
    done = slurm.finish(process)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_slurm_is_down(slurm: Any, lab: Lab) -> None:
    name = slurm.script("print('ran here')")
    lab.stop_slurmctld()
    try:
        done = slurm.run("--cluster=slurm", name, SLURMMESH_SLURM_PATIENCE_S="0.5")
        assert done.returncode == 3
        assert "(slurmctld) does not answer" in done.stderr
        assert "scontrol ping" in done.stderr
        done = slurm.run(name)
        assert done.returncode == 0
        assert "running on this machine: Slurm's controller (slurmctld) does not" in done.stderr
    finally:
        lab.restart_slurmctld()


def test_ctrl_c_while_slurm_does_not_answer(
    slurm: Any, lab: Lab, wait_until: WaitUntil, press_ctrl_c: CtrlC
) -> None:
    name = slurm.script("print('ran')")
    lab.stop_slurmctld()
    try:
        process = slurm.start("--cluster=slurm", name, SLURMMESH_SLURM_PATIENCE_S="600")
        wait_until(slurm.jobs.exists)
        press_ctrl_c(process)
        done = slurm.finish(process)
    finally:
        lab.restart_slurmctld()
    assert done.returncode == 130
    assert not queue(lab)


@pytest.mark.slow
def test_the_job_folder_cannot_be_made_on_the_node(slurm: Any, wait_until: WaitUntil) -> None:
    """As on a node that does not see the file system of the submit."""
    done = slurm.run("--parsable", LATER, slurm.script(""))
    job_id = done.stdout.strip()
    shutil.rmtree(slurm.jobs / job_id)
    (slurm.jobs / job_id).write_text("a file in its place")
    subprocess.run(
        ["scontrol", "update", f"jobid={job_id}", "starttime=now"], env=slurm.environ, check=True
    )
    output = slurm.jobs / f"{job_id}.out"
    wait_until(lambda: output.exists() and "slurmmesh: cannot make the job" in output.read_text())


@pytest.mark.slow
def test_an_id_that_an_earlier_cluster_used_is_not_taken_for_the_earlier_job(
    tmp_path: Path,
) -> None:
    (tmp_path / "program.py").write_text("import sys; sys.exit(int(sys.argv[1]))")
    codes = []
    for code in (0, 7):
        with Lab(nodes=1, settings={"FirstJobId": "7"}) as lab:
            done = subprocess.run(
                [sys.executable, "-m", "slurmmesh.submit", "--wait", "program.py", "--", str(code)],
                env=lab.env(SLURMMESH_JOB_ROOT=str(tmp_path / "jobs")),
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=120,
            )
        codes.append(done.returncode)
    assert codes == [0, 7]
    records = [
        json.loads(path.read_text())["exit_code"]
        for path in sorted((tmp_path / "jobs").glob("7*/attempt-0/job.json"))
    ]
    assert sorted(records) == [0, 7]


@pytest.mark.slow
def test_each_lab_counts_jobs_from_another_number() -> None:
    ids = []
    for _ in range(2):
        with Lab(nodes=1) as lab:
            ids.append(lab.run("sbatch", "--parsable", "--wrap", "true", "-o", "/dev/null").stdout)
    assert int(ids[0]) < int(ids[1])

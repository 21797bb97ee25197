"""One lab of four nodes, used as a user would: with Slurm's own commands."""

from __future__ import annotations

import os
import pwd
import re
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab import Lab

pytestmark = pytest.mark.slurm


def job_state(lab: Lab, job: str) -> str:
    shown = lab.run("scontrol", "-o", "show", "job", job).stdout
    match = re.search(r"JobState=(\w+)", shown)
    assert match is not None
    return match[1]


def submit(lab: Lab, folder: Path, *options: str) -> str:
    out = lab.run("sbatch", "--parsable", "-o", str(folder / "%j.out"), *options)
    return out.stdout.strip().split(";")[0]


def test_all_nodes_are_idle_once_it_is_up(lab: Lab) -> None:
    assert lab.states() == dict.fromkeys(["node1", "node2", "node3", "node4"], "idle")
    assert lab.run("sinfo", "-h", "-o", "%D").stdout.strip() == "4"


def test_its_files_are_the_users_alone(lab: Lab) -> None:
    assert stat.S_IMODE(lab.root.stat().st_mode) == 0o700
    assert stat.S_IMODE((lab.root / "etc" / "munge.key").stat().st_mode) == 0o400


def test_a_step_runs_on_every_node_as_the_invoking_user(lab: Lab) -> None:
    out = lab.run("srun", "-N4", "sh", "-c", "echo $SLURMD_NODENAME $(id -u)").stdout
    assert sorted(out.split("\n")[:-1]) == [f"{name} {os.getuid()}" for name in lab.nodes]


def test_gpus_are_seen_by_the_tasks_they_were_given_to(lab: Lab) -> None:
    show = "echo $SLURM_PROCID $ROCR_VISIBLE_DEVICES"
    out = lab.run("srun", "-N1", "-n4", "--gpus-per-task=2", "sh", "-c", show).stdout
    assert sorted(out.splitlines()) == ["0 0,1", "1 2,3", "2 4,5", "3 6,7"]
    out = lab.run("srun", "-N1", "sh", "-c", "echo ${ROCR_VISIBLE_DEVICES-none}").stdout
    assert out.split() == ["none"]
    assert "gpu:mi300x:8" in lab.run("sinfo", "-h", "-o", "%G").stdout


@pytest.mark.slow
def test_a_batch_job_finds_the_lab_with_any_environment(
    lab: Lab, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    job = submit(lab, tmp_path, "--export=NONE", "-N2", "--wrap", "srun -N2 /usr/bin/env")
    wait_until(lambda: job_state(lab, job) == "COMPLETED", "the job has run")
    text = (tmp_path / f"{job}.out").read_text()
    assert text.count(f"SLURM_CONF={lab.conf}\n") == 2
    assert "SLURM_LAUNCH_NODE_IPADDR=127.0.0.1" in text
    assert "_SLURMMESH_LAB" not in text


@pytest.mark.slow
def test_a_drained_node_gets_no_job_until_it_is_resumed(
    lab: Lab, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    lab.drain("node3", "it is tired")
    assert lab.wait_state("node3", "drained").startswith("drained")
    assert "it is tired" in lab.run("sinfo", "-R", "-h").stdout
    job = submit(lab, tmp_path, "-w", "node3", "--wrap", "true")
    lab.resume("node3")
    lab.wait_state("node3", "idle")
    wait_until(lambda: job_state(lab, job) == "COMPLETED", "the job has run")


@pytest.mark.slow
def test_a_killed_node_leaves_the_job_that_may_shrink(
    lab: Lab, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    """Its tasks die with it, also those that left their session; the others never notice."""
    task = 'echo $$ > "$PIDS/$SLURMD_NODENAME"; setsid sleep 600 & echo $! >> '
    task += '"$PIDS/$SLURMD_NODENAME"; wait'
    (tmp_path / "task").write_text(task)
    srun = f"srun --no-kill --kill-on-bad-exit=0 --wait=0 sh {tmp_path}/task"
    pids = tmp_path / "pids"
    pids.mkdir()
    options = ("-N3", "-w", "node1,node2,node4", "--no-kill", f"--export=ALL,PIDS={pids}")
    job = submit(lab, tmp_path, *options, "--wrap", srun)

    def tasks(node: str) -> list[int]:
        file = pids / node
        return [int(word) for word in file.read_text().split()] if file.exists() else []

    def alive(node: str) -> list[int]:
        return [pid for pid in tasks(node) if os.path.exists(f"/proc/{pid}")]

    nodes = ("node1", "node2", "node4")
    wait_until(lambda: all(len(tasks(node)) == 2 for node in nodes), "all tasks run")
    lab.kill_node("node2")
    assert alive("node2") == []
    with pytest.raises(UsageError, match="node2 is not running"):
        lab.kill_node("node2")
    assert lab.states()["node2"] in ("mixed", "allocated"), "Slurm does not know yet"
    lab.wait_state("node2", "down")
    assert job_state(lab, job) == "RUNNING"
    assert len(alive("node1")) == len(alive("node4")) == 2

    lab.start_node("node2")
    with pytest.raises(UsageError, match="node2 is running"):
        lab.start_node("node2")
    assert lab.run("srun", "-w", "node2", "-N1", "echo", "back").stdout == "back\n"
    lab.run("scancel", job)
    wait_until(lambda: alive("node1") + alive("node4") == [], "the job is gone")


def test_steps_go_on_while_slurmctld_is_away(
    lab: Lab, tmp_path: Path, wait_until: Callable[..., None]
) -> None:
    go = tmp_path / "go"
    loop = f"srun sh -c 'while ! [ -e {go} ]; do sleep 0.1; done; echo went on'"
    job = submit(lab, tmp_path, "-N1", "--wrap", loop)
    wait_until(lambda: f"{job}.0" in lab.run("squeue", "-s", "-h", "-o", "%i").stdout, "it runs")
    lab.stop_slurmctld()
    assert "is DOWN" in lab.run("scontrol", "ping", check=False).stdout
    with pytest.raises(UsageError, match="slurmctld is not running"):
        lab.stop_slurmctld()
    lab.restart_slurmctld()
    assert job_state(lab, job) == "RUNNING"
    lab.restart_slurmctld(crash=True)
    go.touch()
    wait_until(lambda: job_state(lab, job) == "COMPLETED", "the job has ended")
    assert (tmp_path / f"{job}.out").read_text() == "went on\n"


def test_helpers_refuse_what_the_lab_does_not_have(lab: Lab) -> None:
    with pytest.raises(UsageError, match=r"no node 'node5'.*node1 \.\. node4"):
        lab.kill_node("node5")
    with pytest.raises(UsageError, match="netns"):
        lab.cut_network("node1")
    with pytest.raises(UsageError, match="no node"):
        lab.drain("all")


def test_a_failed_command_brings_its_words(lab: Lab) -> None:
    with pytest.raises(LabError, match=r"scontrol show node node9 ended with code 1"):
        lab.run("scontrol", "show", "node", "node9")
    assert lab.run("sh", "-c", "cat; exit 3", input="hello", check=False).returncode == 3
    with pytest.raises(LabError, match="took more than"):
        lab.run("sleep", "600", timeout=0.1)
    with pytest.raises(LabError, match="no-such-program did not start"):
        lab.run("no-such-program")


def test_the_environment_is_the_callers_but_for_the_outer_job(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    monkeypatch.setenv("SBATCH_PARTITION", "nowhere")
    env = lab.env(EXTRA="1")
    assert "SLURM_JOB_ID" not in env
    assert "SBATCH_PARTITION" not in env
    assert env["PATH"] == os.environ["PATH"]
    assert env["EXTRA"] == "1"
    assert env["SLURM_CONF"] == str(lab.conf)


def test_a_second_lab_of_the_same_user_is_another_cluster(lab: Lab) -> None:
    with Lab(1, gpus=0, cpus=3, settings={"MaxStepCount": "11"}) as other:
        assert other.root != lab.root
        assert other.run("sinfo", "-h", "-o", "%D %c %G").stdout.split() == ["1", "3", "(null)"]
        assert "MaxStepCount            = 11" in other.run("scontrol", "show", "config").stdout
        assert len(lab.states()) == 4
        user = pwd.getpwuid(os.getuid()).pw_name
        other.run("srun", "sh", "-c", f'[ "$(id -un)" = {user} ]')


def test_an_attached_lab_is_the_same_one(lab: Lab) -> None:
    attached = Lab.attach(lab.root)
    assert attached.nodes == lab.nodes
    assert attached.spec == lab.spec
    assert attached.states().keys() == lab.states().keys()

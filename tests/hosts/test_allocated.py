"""Hosts on a real Slurm: a step per node, a node that dies, a node behind a cut network."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slurmmesh.lab import Lab

pytestmark = pytest.mark.slurm

SCRIPT = """
import json, os, sys, time
import slurmmesh as sm
from slurmmesh.hosts import roster, job as jobs

roster.HOST_SILENCE_S, roster.LEASE_S, roster.HEARTBEAT_S = 3.0, 1.5, 0.2


class Probe(sm.Actor):
    @sm.endpoint
    def where(self):
        return os.getpid(), sm.context().host, sm.context().host_address

    @sm.endpoint
    def has(self, variable):
        return variable in os.environ

    @sm.endpoint
    def wait(self):
        time.sleep(3600)


folder = sys.argv[1]
job = jobs.start_job(os.environ)
os.environ["SET_LATER"] = "yes"  # the hosts are being started meanwhile, in the job's environment
try:
    procs = job.hosts.spawn_procs({"gpus": 2}, name="probe")
    actors = procs.spawn("probe", Probe)
    where = list(actors.where.call().get(60).values())
    assert not any(actors.has.call("SET_LATER").get(60).values())
    with open(folder + "/up.tmp", "w") as file:
        json.dump(where, file)
    os.rename(folder + "/up.tmp", folder + "/up")
    error = actors.slice(hosts=1).wait.call().exception(120)
    rest = actors.slice(hosts=[0, 2]).where.call().get(60)
    print(type(error).__name__, error.cause.host, error.cause.detail, len(rest))
finally:
    job.close()
"""


def submit(lab: Lab, folder: Path, nodes: int = 3) -> None:
    (folder / "script.py").write_text(SCRIPT)
    job = folder / "job"
    (folder / "batch.sh").write_text(
        "#!/bin/bash\n"
        f"export SLURMMESH_JOB_FOLDER={job} SLURMMESH_JOB_ID=$SLURM_JOB_ID\n"
        f"export SLURMMESH_CLUSTER=slurm SLURMMESH_NODES={nodes}\n"
        f"{sys.executable} -u {folder}/script.py {folder} >{folder}/out 2>&1\n"
        f"echo $? >{folder}/code.tmp; mv {folder}/code.tmp {folder}/code\n"
    )
    subprocess.run(
        [
            "sbatch",
            f"-N{nodes}",
            "--no-kill",
            "-o",
            "/dev/null",
            str(folder / "batch.sh"),
        ],
        env=lab.env(),
        cwd=folder,
        stdout=subprocess.DEVNULL,
        check=True,
    )


def wait_for(path: Path, timeout: float = 60) -> None:
    deadline = time.monotonic() + timeout
    while not path.exists():
        assert time.monotonic() < deadline, (path.parent / "out").read_text()
        assert path.name == "code" or not (path.parent / "code").exists()
        time.sleep(0.01)


def events(folder: Path, kind: str) -> list[dict]:
    lines = (folder / "job" / "events.jsonl").read_text().splitlines()
    return [event for event in map(json.loads, lines) if event["kind"] == kind]


def alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


@pytest.mark.slow
def test_a_node_that_dies_without_a_goodbye_is_noticed_and_the_rest_goes_on(
    tmp_path: Path, outlives_tests: Callable[[Path], AbstractContextManager[None]]
):
    with Lab(nodes=3) as lab:
        submit(lab, tmp_path)
        wait_for(tmp_path / "up")
        where = json.loads((tmp_path / "up").read_text())
        assert [host for _, host, _ in where] == [f"node{1 + rank // 2}" for rank in range(6)]
        lab.kill_node("node2")
        wait_for(tmp_path / "code")
        assert (tmp_path / "code").read_text() == "0\n", (tmp_path / "out").read_text()
        assert "ProcDied node2 its host is lost" in (tmp_path / "out").read_text()
        assert [event["name"] for event in events(tmp_path, "host_lost")] == ["node2"]


@pytest.mark.slow
@pytest.mark.skipif(os.getuid() != 0, reason="network namespaces need root")
def test_a_host_behind_a_cut_network_is_given_up_and_ends_its_procs_itself(tmp_path: Path):
    with Lab(nodes=3, netns=True) as lab:
        submit(lab, tmp_path)
        wait_for(tmp_path / "up")
        where = json.loads((tmp_path / "up").read_text())
        addresses = [address for _, _, address in where]
        assert len(set(addresses)) == 3
        assert not any(address.startswith("127.") for address in addresses)
        cut_off = [pid for pid, host, _ in where if host == "node2"]
        lab.cut_network("node2")
        deadline = time.monotonic() + 60
        while any(map(alive, cut_off)):
            assert time.monotonic() < deadline, "procs go on behind the cut"
            time.sleep(0.01)
        wait_for(tmp_path / "code")
        assert (tmp_path / "code").read_text() == "0\n", (tmp_path / "out").read_text()
        [lost] = events(tmp_path, "host_lost")
        assert lost["name"] == "node2"
        assert "no sign of life" in lost["cause"]
        lab.heal_network("node2")


CANCELLED = """
import os, sys, time
import slurmmesh as sm


class Probe(sm.Actor):
    @sm.endpoint
    def pid(self):
        return os.getpid()


rule = sm.Supervision("one_for_one", max_restarts=9, within_s=60)
procs = sm.this_job().hosts.spawn_procs({"gpus": 2}, name="probe", supervise=rule)
actors = procs.spawn("probe", Probe)
actors.pid.call().get(60)
open(sys.argv[1], "w").close()
try:
    time.sleep(3600)
finally:
    time.sleep(0.5)  # a program that takes its time to end
"""


@pytest.mark.slow
def test_a_cancelled_job_ends_in_order_without_an_alarm(tmp_path: Path):
    with Lab(nodes=2) as lab:
        script = tmp_path / "script.py"
        script.write_text(CANCELLED)
        job = tmp_path / "job"
        (tmp_path / "batch.sh").write_text(
            "#!/bin/bash\n"
            f"export SLURMMESH_JOB_FOLDER={job} SLURMMESH_JOB_ID=$SLURM_JOB_ID\n"
            "export SLURMMESH_CLUSTER=slurm SLURMMESH_NODES=2\n"
            f"exec {sys.executable} -u -m slurmmesh.hosts.program {script} {tmp_path}/up\n"
        )
        command = ["sbatch", "--parsable", "-N2", "--no-kill", "-o", f"{tmp_path}/out"]
        job_id = subprocess.run(
            [*command, str(tmp_path / "batch.sh")],
            env=lab.env(),
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout.strip()
        wait_for(tmp_path / "up")
        subprocess.run(["scancel", job_id], env=lab.env(), check=True)
        deadline = time.monotonic() + 60
        while not events(tmp_path, "job_ended"):
            assert time.monotonic() < deadline, (tmp_path / "out").read_text()
            time.sleep(0.01)
        assert events(tmp_path, "job_ended")[-1]["exit_code"] == 143
        assert events(tmp_path, "host_lost") == events(tmp_path, "proc_restarted") == []
        ends = events(tmp_path, "proc_exited")
        assert len(ends) == 4
        assert all(end["expected"] for end in ends), ends
        said = (tmp_path / "out").read_text()
        assert "lost" not in said
        assert "Traceback" not in said

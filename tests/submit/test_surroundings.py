"""Submits from odd places: inside jobs and array tasks, from bare and hostile shells."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

INNER = """
import json, os
import slurmmesh as sm

class Host(sm.Actor):
    @sm.endpoint
    def environment(self):
        return dict(os.environ)

job = sm.this_job()
host = job.hosts.spawn_procs(name="procs").spawn("host", Host).slice(hosts=0)
told = {"job": job.id, "hosts": len(job.hosts.names), "controller": dict(os.environ)}
print("told", json.dumps({**told, "host": host.environment.call_one().get()}), flush=True)
"""
HOSTILE = {
    "SLURM_CPU_BIND": "mask_cpu:0x1",
    "SLURM_CPU_BIND_TYPE": "mask_cpu:",
    "SLURM_MEM_PER_CPU": "7",
    "SLURM_NTASKS": "5",
    "SRUN_CPUS_PER_TASK": "9",
    "SQUEUE_FORMAT": "%j",
    "SQUEUE_STATES": "PD",
    "SINFO_FORMAT": "junk",
    "SBATCH_ACCOUNT": "nobody",
    "SBATCH_PARTITION": "low",
    "SBATCH_TEST_ONLY": "1",
    "SLURM_TIME_FORMAT": "relative",
    "PMI_RANK": "3",
}
# What differs between any two jobs.
OF_EACH_JOB = ("SLURM_JOB", "SLURM_TASK", "SLURM_TOPOLOGY", "SLURM_SUBMIT", "SLURM_STEP")


def told(text: str) -> dict[str, Any]:
    (line,) = (each for each in text.splitlines() if each.startswith("told "))
    return json.loads(line.removeprefix("told "))  # type: ignore[no-any-return]


def of_slurm(environ: dict[str, str]) -> dict[str, str]:
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(("SLURM", "SBATCH", "SRUN", "PMI", "ROCR", "CUDA"))
        and not name.startswith((*OF_EACH_JOB, "SLURMMESH_"))
        and name not in ("SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_PORT", "SLURM_GTIDS")
    }


def test_a_job_is_the_same_from_wherever_it_is_submitted(slurm: Any) -> None:
    """From a login shell, from inside a job and from an array task, each as hostile as can be."""
    inner = slurm.script(INNER, "inner.py")
    done = slurm.run("--wait", "-N2", inner)
    assert done.returncode == 0, done.stderr
    plain = told(slurm.log(done.stdout.split()[2]))
    outer = slurm.script(
        f"""
import os, subprocess, sys
os.environ |= {HOSTILE!r}
done = subprocess.run(
    [{sys.executable!r}, "-m", "slurmmesh.submit", "--wait", "--parsable", "-N2", "inner.py"],
    capture_output=True, text=True,
)
print("inner", done.stdout, done.stderr, flush=True)
sys.exit(done.returncode)
""",
        "outer.py",
    )
    for words in (["-N1", "-c2", "--gpus-per-node=2"], ["--array=3", "-c2", "--gpus-per-node=2"]):
        done = slurm.run("--wait", *words, outer)
        outer_id = done.stdout.split()[2] + ("_3" if "--array=3" in words else "")
        log = slurm.log(outer_id)
        assert done.returncode == 0, log
        job_id = log.partition("inner ")[2].split()[0]
        found = told(slurm.log(job_id))
        assert (found["job"], found["hosts"]) == (job_id, 2)
        for process in ("controller", "host"):
            assert of_slurm(found[process]) == of_slurm(plain[process])


@pytest.mark.parametrize("export", ["NONE", "HOME", "NIL"])
def test_a_job_without_its_users_environment(slurm: Any, export: str) -> None:
    """PATH is not exported then, nor are the settings; variables given for the job are."""
    inner = slurm.script(INNER)
    words = [
        f"--sbatch=--export={export}",
        "--env",
        "A=1,2",
        "--env",
        "PYTHONPATH",
        "--wait",
        "-N2",
    ]
    done = slurm.run(*words, inner, SECRET="x")
    assert done.returncode == 0, done.stderr + slurm.log()
    found = told(slurm.log(done.stdout.split()[2]))
    for process in ("controller", "host"):
        assert found[process]["A"] == "1,2"
        assert "SECRET" not in found[process]


@pytest.mark.parametrize("folder", ["", "/nonexistent", "/proc", "x" * 200, None])
def test_any_tmpdir(slurm: Any, tmp_path: Path, folder: str | None) -> None:
    inner = slurm.script(INNER)
    if folder is None:
        slurm.environ.pop("TMPDIR", None)
    else:
        slurm.environ["TMPDIR"] = folder
        if folder.startswith("x"):
            (tmp_path / folder).mkdir()
            slurm.environ["TMPDIR"] = str(tmp_path / folder)
    done = slurm.run("--wait", "-N2", inner)
    assert done.returncode == 0, done.stderr + slurm.log()


def test_a_long_job_root(slurm: Any) -> None:
    """Longer than the path of a unix socket may be."""
    root = slurm.folder / ("r" * 120) / "ö 'x'"
    done = slurm.run("--wait", "-N2", slurm.script(INNER), SLURMMESH_JOB_ROOT=str(root))
    assert done.returncode == 0, done.stderr
    assert told((root / done.stdout.split()[2] / "attempt-0" / "controller.log").read_text())


def test_a_nested_submit_needs_no_path_to_slurms_configuration(slurm: Any, lab: Lab) -> None:
    """SLURM_CONF alone says where the cluster is; it is kept."""
    assert "SLURM_CONF" in lab.env()
    done = slurm.run("--wait", slurm.script("import os; print(os.environ['SLURM_CONF'])"))
    assert done.returncode == 0
    assert lab.env()["SLURM_CONF"] in slurm.log(done.stdout.split()[2])

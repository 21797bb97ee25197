"""A submit from inside a job is like one from a login node: the two new jobs see the same."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.lab import Lab

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
WaitUntil = Callable[[Callable[[], object]], None]

# A job that writes what it sees, and a program that submits it as our front door does.
SHOW = """#!{python}
import json, os
with open("{out}.part", "w") as file:
    json.dump(dict(os.environ), file)
os.rename("{out}.part", "{out}")
"""
SUBMIT = """#!{python}
import os, sys
from pathlib import Path
from slurmmesh.config import Settings
from slurmmesh.slurm.client import SlurmClient

client = SlurmClient(Settings(job_root=Path("{root}")), os.environ)
client.submit({script!r}, ["--output=/dev/null", "--chdir={root}", "--job-name=inner"])
"""
# What users have in their shells, and what makes the new job another one if it gets through.
HOSTILE = {
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_MEM_PER_CPU": "7",
    "SLURM_NTASKS": "9",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURM_CLUSTERS": "nowhere",
    "SBATCH_ACCOUNT": "nobody",
    "SBATCH_PARTITION": "low",
    "SBATCH_TIMELIMIT": "1",
    "SRUN_DEBUG": "3",
    "PMI_RANK": "5",
    "SQUEUE_FORMAT": "junk",
    "SLURM_TIME_FORMAT": "relative",
}
# What differs between any two jobs.
OF_EACH_JOB = {
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_TASK_PID", "SLURM_JOB_START_TIME"),
    *("SLURM_JOB_END_TIME", "SLURM_TOPOLOGY_ADDR", "SLURM_NODELIST", "SLURM_JOB_NODELIST"),
    *("SLURMD_NODENAME", "HOSTNAME", "SLURM_SUBMIT_HOST"),
}


@pytest.fixture
def seen_by_inner(
    lab: Lab, tmp_path: Path, wait_until: WaitUntil
) -> Callable[[str, list[str]], dict[str, str]]:
    """``seen_by_inner(how, command)``: what a job sees whose submit runs by ``command``."""

    def run(how: str, command: list[str]) -> dict[str, str]:
        out = tmp_path / how
        script = SHOW.format(python=sys.executable, out=out)
        program = tmp_path / f"{how}.py"
        program.write_text(SUBMIT.format(python=sys.executable, root=tmp_path, script=script))
        program.chmod(0o755)
        shell = {name: value for name, value in os.environ.items() if not name.startswith("SLURM")}
        environ = {**shell, **HOSTILE, "PYTHONPATH": str(ROOT), "SLURM_CONF": str(lab.conf)}
        if command:  # the surrounding job itself is one of its own kind
            environ = {k: v for k, v in environ.items() if k not in HOSTILE}
            exports = "".join(f"export {k}={v!r}\n" for k, v in HOSTILE.items())
            program.with_suffix(".sh").write_text(f"#!/bin/bash\n{exports}exec {program}\n")
            program.with_suffix(".sh").chmod(0o755)
            program = program.with_suffix(".sh")
        lab.run(*command, program, env=environ, cwd=tmp_path)
        wait_until(out.exists)
        return {k: v for k, v in json.loads(out.read_text()).items() if k not in OF_EACH_JOB}

    return run


OUTER = ["--gpus-per-node=2", "--cpus-per-task=2", "--mem-per-cpu=100", "--ntasks=2"]


@pytest.mark.parametrize(
    ("how", "command"),
    [
        ("batch", ["sbatch", "--wait", "--output=outer.out", *OUTER]),
        ("array", ["sbatch", "--wait", "--output=outer.out", "--array=3", *OUTER]),
        ("step", ["srun", "--ntasks=1", "--gpus=1", "--cpu-bind=cores", "--mem-per-cpu=100"]),
        ("salloc", ["salloc", "--nodes=2", "--quiet", "--gpus-per-node=1"]),
    ],
)
def test_a_job_from_inside_a_job_sees_what_one_from_a_login_node_sees(
    seen_by_inner: Callable[[str, list[str]], dict[str, str]], how: str, command: list[str]
) -> None:
    login = seen_by_inner("login", [])
    inner = seen_by_inner(how, command)
    # The shell that started the outer job's program counts as one.
    shell = {"_", "SHLVL", "PWD", "OLDPWD"}
    differing = {
        name: (login.get(name), inner.get(name))
        for name in (login.keys() | inner.keys()) - shell
        if login.get(name) != inner.get(name)
    }
    assert not differing
    assert inner["SLURM_JOB_NAME"] == "inner"
    assert inner["SLURM_JOB_PARTITION"] == "main"
    assert inner["SQUEUE_FORMAT"] == "junk"  # the user's own, and no option of a job

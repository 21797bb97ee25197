"""Scripts as a real Slurm takes them: nothing a user gives adds to them, and each template runs.

The lab has no GPU and no fabric: what is seen is that the settings reach the processes, not what
they are good for.
"""

from __future__ import annotations

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.config import Settings
from slurmmesh.errors import UsageError
from slurmmesh.lab import Lab
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.template import command_line_options, render, template_names

pytestmark = [pytest.mark.slurm, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
JOBS = 50
PIECES = [
    *("a", "Z", "0", "ö", "名", "\u202e", "-", "--", "=", ",", ";", "&", "|", "<", ">", "(", ")"),
    *("'", '"', "\\", "`", "$", "${HOME}", "$(touch pwned)", "%", "%j", "%%", "#", " #", " ", "~"),
    *("#SBATCH --nodes=99", "\n#SBATCH --nodes=99\n", "\n", "\r", "\t", "{{ 7 * 7 }}", "{% raw %}"),
    *("!", "*", "?", "[0-9]", "\x1b[31m", "EOF", "exit 1", "'; exit 1; '", "\\n", "$'\\n'"),
]


def hostile(chance: random.Random) -> str:
    return "".join(chance.choices(PIECES, k=chance.randint(1, 6)))


def a_job(chance: random.Random, folder: Path) -> SlurmJob:
    """With random values in a random choice of options. Raises UsageError for what cannot be."""
    makers: dict[str, Callable[[], Any]] = {
        "job_name": lambda: hostile(chance),
        "comment": lambda: hostile(chance),
        "mail_user": lambda: hostile(chance),
        "args": lambda: [hostile(chance) for _ in range(3)],
        "env": lambda: {"A": hostile(chance), "B": hostile(chance)},
        "program": lambda: hostile(chance),
        "chdir": lambda: f"/{hostile(chance)}",
        "job_root": lambda: str(folder / hostile(chance)),
        "output": lambda: str(folder / hostile(chance)),
        "sbatch": lambda: ["--hold", f"--thread-spec={chance.randint(1, 4)}"],
        "time": lambda: chance.choice(["30", "1:00:00", "2-12", "UNLIMITED"]),
        "template": lambda: chance.choice(template_names()),
    }
    chosen = chance.sample(sorted(makers), chance.randint(1, 4))
    options = {"program": "train.py", "job_root": str(folder), "sbatch": ["--hold"], "nodes": 2}
    return SlurmJob(**{**options, **{name: makers[name]() for name in chosen}})


def test_what_sbatch_got_is_what_was_meant(lab: Lab, tmp_path: Path) -> None:
    client = SlurmClient(Settings(job_root=lab.root), lab.env())
    chance = random.Random(20261130)
    refused = 0
    submitted = 0
    while submitted < JOBS:
        try:
            job = a_job(chance, tmp_path)
            script = render(job)
        except UsageError:
            refused += 1
            continue
        ref = client.submit(script, command_line_options(job), name=str(job.job_name))
        submitted += 1
        stored = lab.run("scontrol", "write", "batch_script", ref.id, "-").stdout
        assert stored.rstrip("\0\n") == script.rstrip("\n")
        shown = lab.run("squeue", "-h", "-j", ref.id, "-o", "%D|%j|%k").stdout[:-1]
        comment = "(null)" if job.comment is None else job.comment
        # Blanks at the ends cannot be told from padding.
        nodes, _, rest = shown.partition("|")
        assert nodes == "2"
        assert re.sub(" *\\| *", "|", rest.strip()) == re.sub(
            " *\\| *", "|", f"{job.job_name}|{comment}".strip()
        )
        lab.run("scancel", ref.id)
    assert refused < JOBS * 10
    assert not (tmp_path / "pwned").exists()


PROGRAM = """
import json, os, sys
import slurmmesh as sm

class Reader(sm.Actor):
    @sm.endpoint
    def look(self):
        folders = os.environ.get("SLURMMESH_NODE_FOLDERS", "").split()
        return dict(os.environ), [os.path.isdir(os.environ[name]) for name in folders]

procs = sm.this_job().hosts.spawn_procs({"gpus": 2}, name="procs")
seen = procs.spawn("reader", Reader).look.call().get()
with open(sys.argv[1], "w") as file:
    json.dump(list(seen.values()), file)
procs.stop()
"""


@pytest.fixture
def seen_by(lab: Lab, tmp_path: Path) -> Callable[..., list[dict[str, str]]]:
    """``seen_by(*options, **environ)``: the environments of four procs on two hosts."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def run(*options: str, **environ: str) -> list[dict[str, str]]:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [
                *(sys.executable, "-m", "slurmmesh.submit", "-N", "2", "--gpus-per-node", "2"),
                *("-c", "6", "--wait", *options, "program.py", "--", "seen.json"),
            ],
            cwd=tmp_path,
            env=lab.env(PYTHONPATH=path, **environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        logs = [each.read_text() for each in tmp_path.glob("slurmmesh-jobs/*/*/controller.log")]
        assert done.returncode == 0, "\n".join([done.stderr, *logs])
        looks = json.loads((tmp_path / "seen.json").read_text())
        assert len(looks) == 4
        assert all(all(folders) for _, folders in looks)
        return [environment for environment, _ in looks]

    return run


@pytest.mark.parametrize("template", sorted({*template_names()} - {"default"}))
def test_the_processes_of_a_job_see_the_settings(
    template: str, seen_by: Callable[..., list[dict[str, str]]]
) -> None:
    job = SlurmJob("program.py", template=template, gpus_per_node=2, cpus_per_task=6)
    defaults = dict(re.findall(r'^export (\w+)="\$\{\w+-(.*)\}"$', render(job), re.MULTILINE))
    # There is no such interface here.
    options = ["--interface", "=lo"] if "SLURMMESH_INTERFACE" in defaults else []
    for environment in seen_by("--template", template, *options, HIP_VISIBLE_DEVICES="0"):
        for name, value in defaults.items():
            if name == "SLURMMESH_INTERFACE":
                value = "=lo"
            assert environment[name] == value
        # Slurm's mask, and beside it none of the user's shell.
        assert len(environment["ROCR_VISIBLE_DEVICES"].split(",")) == 2
        assert ("HIP_VISIBLE_DEVICES" in environment) == (not template.startswith("mi300"))


def test_caches_are_on_each_node_and_gone_after_the_job(
    seen_by: Callable[..., list[dict[str, str]]],
) -> None:
    environments = seen_by("--template", "mi300", "--env", "MIOPEN_CUSTOM_CACHE_DIR=/")
    paths = [environment["MIOPEN_USER_DB_PATH"] for environment in environments]
    assert paths[0] == paths[1] != paths[2] == paths[3]
    assert not any(os.path.exists(os.path.dirname(path)) for path in paths)
    assert {each["MIOPEN_CUSTOM_CACHE_DIR"] for each in environments} == {"/"}


def test_the_users_values_win(seen_by: Callable[..., list[dict[str, str]]]) -> None:
    for environment in seen_by(
        *("--template", "mi300", "--env", "GPU_MAX_HW_QUEUES=8"),
        *("--setup", f"export HSA_NO_SCRATCH_RECLAIM={shlex.quote('se t')}"),
        NCCL_DEBUG="INFO",
    ):
        assert environment["NCCL_DEBUG"] == "INFO"
        assert environment["GPU_MAX_HW_QUEUES"] == "8"
        assert environment["HSA_NO_SCRATCH_RECLAIM"] == "se t"

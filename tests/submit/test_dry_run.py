"""``--dry-run``: the exact script on stdout, and nothing done."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

ISSUE = [
    *("--cluster", "slurm", "--dry-run", "-N", "16", "--gpus-per-node", "8", "--spares", "1"),
    *("-J", 'my "run" #1', "train.py"),
]


@pytest.mark.parametrize("path", ["/usr/bin:/bin", "/nowhere"], ids=["slurm", "no slurm"])
def test_the_example_of_the_issue(local: Any, path: str) -> None:
    done = local.run(*ISSUE, PATH=path)
    assert done.returncode == 0, done.stderr
    assert "#SBATCH --nodes=17\n" in done.stdout
    assert "#SBATCH --job-name='my \"run\" #1'\n" in done.stdout
    assert done.stdout.startswith("#!/bin/bash\n")
    assert "warning: there is no script 'train.py'" in done.stderr
    subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=True)
    assert not local.jobs.exists()


def test_no_warning_where_the_script_is(local: Any) -> None:
    local.script("", "train.py")
    done = local.run(*ISSUE)
    assert (done.returncode, done.stderr) == (0, "")


def test_values_are_checked(local: Any) -> None:
    done = local.run("--dry-run", "-N", "0", "train.py")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "slurmmesh: error: --nodes 0: a job needs at least one node\n"


def test_there_is_none_for_this_machine(local: Any) -> None:
    done = local.run("--dry-run", "--cluster=local", "train.py")
    assert done.returncode == 2
    assert "--cluster local has none" in done.stderr


def test_bytes_of_names_are_kept_in_any_locale(local: Any) -> None:
    for locale in ("C", "C.UTF-8"):
        done = subprocess.run(
            ["bash", "-c", f"{local.python} --dry-run train.py -- $'\\xff\\xfe' ö"],
            cwd=local.folder,
            env={**local.environ, "LC_ALL": locale},
            capture_output=True,
            check=True,
        )
        assert b"train.py '\xff\xfe' '\xc3\xb6'\n" in done.stdout

"""``slurmmesh templates`` as users run it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.slurm.template import template_text
from slurmmesh.submit.templates_command import description_of

ROOT = Path(__file__).parents[2]
Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def templates(tmp_path: Path) -> Run:
    """``templates("list", NAME="value")`` in an empty folder, with no settings of this machine."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("SLURMMESH_", "XDG_"))}
    own = {"PYTHONPATH": str(ROOT), "HOME": str(tmp_path), "SLURMMESH_SITE_CONFIG": ""}

    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "slurmmesh", "templates", *words],
            cwd=tmp_path,
            env={**kept, **own, **environ},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )

    return run


def test_list_names_each_and_marks_the_one_that_is_used(templates: Run) -> None:
    done = templates("list")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "* default          The plain script, on any cluster. The others extend it." in lines
    assert "  mi300            AMD Instinct MI300X and MI300A: HIP, RCCL, MIOpen." in lines
    assert all(len(line.split()) > 2 for line in lines[:5])
    done = templates("list", SLURMMESH_SUBMIT_TEMPLATE="mi300")
    assert "* mi300            AMD" in done.stdout
    assert "\n  default" in done.stdout


def test_a_file_of_the_settings_is_listed_with_who_asks_for_it(
    templates: Run, tmp_path: Path
) -> None:
    path = tmp_path / "gpu.sh.j2"
    path.write_text('{#- Ours, on\n   two lines -#}\n{% extends "mi300" %}')
    rows = json.loads(templates("list", "--json", SLURMMESH_SUBMIT_TEMPLATE=str(path)).stdout)
    assert [row["name"] for row in rows if row["used"]] == [str(path)]
    assert rows[-1] == {
        "name": str(path),
        "description": "Ours, on two lines",
        "origin": "SLURMMESH_SUBMIT_TEMPLATE",
        "used": True,
    }
    path.unlink()
    done = templates("list", SLURMMESH_SUBMIT_TEMPLATE=str(path))
    assert done.returncode == 0
    assert "cannot be read: No such file" in done.stdout


def test_show(templates: Run, tmp_path: Path) -> None:
    assert templates("show", "mi300", LC_ALL="C").stdout == template_text("mi300")
    (tmp_path / "own.j2").write_text("ö {{ job.nodes }}")
    assert templates("show", "own.j2").stdout == "ö {{ job.nodes }}"
    assert templates("show", "own.j2", "--rendered", LC_ALL="C").stdout == "ö 16"
    script = templates("show", "--rendered", "mi300").stdout
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    assert "#SBATCH --nodes=17\n" in script


@pytest.mark.slow
def test_check(templates: Run, tmp_path: Path) -> None:
    own = tmp_path / "own.j2"
    own.write_text('{% extends "cpu" %}\n{% block setup %}\nmodule load x\n{% endblock %}')
    done = templates("check", "own.j2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "own.j2: good for jobs of 10 kinds\n"
    own.write_text('{% extends "cpu" %}\n{% block setup %}\nif (\ntouch ran\n{% endblock %}')
    done = templates("check", "own.j2")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slurmmesh: error: template 'own.j2':\n  bash: syntax error")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "required: list|show|check"),
        (["show"], "required: NAME|FILE"),
        (["show", "gpu"], "there is no template 'gpu'"),
        (["check", "gone.j2"], "template 'gone.j2' cannot be read: No such file"),
        (["lst"], "invalid choice: 'lst'"),
        (["list", "--yaml"], "unrecognized arguments: --yaml"),
    ],
)
def test_mistakes_are_told_and_end_with_2(templates: Run, words: list[str], told: str) -> None:
    done = templates(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("slurmmesh: error: ")
    assert told in done.stderr


def test_help(templates: Run) -> None:
    done = templates("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "docs/templates.md" in done.stdout


def test_a_reader_that_leaves_is_no_error_of_ours(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m slurmmesh templates show default | head -c 0"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
    )
    assert done.stderr == b""


@pytest.mark.parametrize(
    ("text", "description"),
    [
        ("{# A b. #}\n{# c #}", "A b."),
        ("\n  {#- a\n b -#}", "a b"),
        ("#!/bin/bash\n{# late #}", ""),
        ("", ""),
    ],
)
def test_a_templates_first_comment_describes_it(text: str, description: str) -> None:
    assert description_of(text) == description

"""``--container`` as users give it. apptainer is a double, see ``tests/slurm/doubles``."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
DOUBLE = ROOT / "tests" / "slurm" / "doubles" / "apptainer.py"


def test_a_program_is_never_run_without_its_image(local: Any) -> None:
    program = local.script("open('started', 'w')")
    for cluster in ("local", "auto"):
        done = local.run(f"--cluster={cluster}", "--container=img.sif", program)
        assert done.returncode == 2
        assert "--container needs Slurm" in done.stderr
    assert not (local.folder / "started").exists()


def test_the_script_is_shown(local: Any) -> None:
    done = local.run("--dry-run", "--container", "docker://rocm/pytorch", "there-alone.py")
    assert done.returncode == 0
    assert '"image": "docker://rocm/pytorch"' in done.stdout
    assert "slurmmesh.slurm.container.launcher" in done.stdout


@pytest.mark.slurm
@pytest.mark.slow
def test_a_job_in_an_image(slurm: Any, tmp_path: Path, wait_until: Callable[..., None]) -> None:
    commands = tmp_path / "bin"
    commands.mkdir()
    run = f'exec {shlex.quote(sys.executable)} -E {shlex.quote(str(DOUBLE))} "$@"'
    (commands / "apptainer").write_text(f"#!/bin/sh\n{run}\n")
    (commands / "apptainer").chmod(0o755)
    image = {"PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin"}
    (slurm.folder / "img.sif").write_text(json.dumps(image))
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    words = ["--cluster=slurm", "--wait", f"--env=PYTHONPATH={ROOT}", "-N2"]
    program = slurm.program_among_namesakes()
    done = slurm.run(*words, "--container", "img.sif", program, PATH=path)
    assert done.returncode == 0, done.stderr + slurm.log()
    assert "found beside it ['found beside it', 'found beside it']" in slurm.log()
    gone = slurm.run(*words, "--container", "gone.sif", program, PATH=path)
    assert gone.returncode == 6
    assert "gone.sif is not on this machine; it must be on the nodes" in gone.stderr
    assert "apptainer did not bring up the image" in gone.stderr

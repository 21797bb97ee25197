"""A lab for a module's tests, and fake commands of Slurm for what no real one does on demand."""

from __future__ import annotations

import json
import os
import stat
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.lab import Lab
from slurmmesh.slurm.queries import SACCT_COLUMNS, SQUEUE_COLUMNS

ROOT = Path(__file__).parents[2]

# The beginning of a program that starts steps.
PREAMBLE = """
import json, os, signal, subprocess, sys, time
from pathlib import Path
from slurmmesh.slurm.allocation import Allocation
from slurmmesh.slurm.steps import StepExecutor, StepJob

executor = StepExecutor("steps")

def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)

"""


@pytest.fixture(scope="session")
def preamble() -> str:
    """The beginning of a program that starts steps."""
    return PREAMBLE


@pytest.fixture
def in_an_allocation(lab: Lab, tmp_path: Path) -> Callable[..., Any]:
    """``in_an_allocation(program, *options)``: the JSON that the program prints last in salloc."""

    def run(program: str, *options: str) -> Any:
        path = tmp_path / "program.py"
        path.write_text(PREAMBLE + textwrap.dedent(program))
        done = lab.run(
            *("salloc", "--quiet", *options, sys.executable, path),
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT)},
            check=False,
            timeout=150,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    return run


@pytest.fixture(scope="module")
def lab(outlives_tests: Callable[[Path], AbstractContextManager[None]]) -> Iterator[Lab]:
    """A real Slurm of four nodes, shared by the tests of a module."""
    with Lab(nodes=4) as lab, outlives_tests(lab.root):
        yield lab


@pytest.fixture
def fake(tmp_path: Path) -> Callable[..., dict[str, str]]:
    """``fake(sbatch="...")``: an environment whose Slurm commands are these bash scripts."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def make(**scripts: str) -> dict[str, str]:
        for name, text in scripts.items():
            path = folder / name
            path.write_text(f"#!/bin/bash\ncd {folder}\n{text}\n")
            path.chmod(path.stat().st_mode | stat.S_IXUSR)
        return {**os.environ, "PATH": f"{folder}:/usr/bin:/bin"}

    return make


def _table(columns: Sequence[str]) -> Callable[..., str]:
    def table(*rows: dict[str, str], **row: str) -> str:
        lines = [dict(zip(columns, columns, strict=True)), *rows, *([row] if row else [])]
        cells = [[line.get(name, "") for name in (columns[0], *columns)] for line in lines]
        text = "\n".join("".join(f"{cell}@@" for cell in line) for line in cells)
        return (
            'mark=$(grep -o "~[0-9a-f]*~" <<<"$*" | head -n 1)\n'
            f"sed \"s/@@/$mark/g\" <<'END'\n{text}\nEND"
        )

    return table


@pytest.fixture(scope="session")
def squeue() -> Callable[..., str]:
    """``squeue(JobID="7", State="RUNNING")``: a script that prints the table it is asked for."""
    return _table(SQUEUE_COLUMNS)


@pytest.fixture(scope="session")
def sacct() -> Callable[..., str]:
    """Like ``squeue``, for sacct."""
    return _table(SACCT_COLUMNS)

"""A lab for a module's tests, and fake commands of Slurm for what no real one does on demand."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from slurmmesh.lab import Lab


@pytest.fixture(scope="module")
def lab(outlives_tests: Callable[[Path], AbstractContextManager[None]]) -> Iterator[Lab]:
    """A real Slurm of four nodes, shared by the tests of a module."""
    with Lab(nodes=4) as lab, outlives_tests(lab.root):
        yield lab


@pytest.fixture(scope="session")
def wait_until() -> Callable[[Callable[[], object]], None]:
    """``wait_until(condition)``: returns when it holds, fails after a minute."""

    def wait(condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < deadline, "it did not come about"
            time.sleep(0.02)

    return wait


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

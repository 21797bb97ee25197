"""Helpers for the tests of the lab. Real daemons; what is left behind is the house's check."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from slurmmesh.errors import MissingDependencyError
from slurmmesh.lab import Lab
from slurmmesh.lab.packages import find_programs
from slurmmesh.lab.spec import LabSpec

REPOSITORY = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    needs = {
        "slurm": LabSpec(),
        "accounting": LabSpec(accounting=True),
        "netns": LabSpec(netns=True),
    }
    for item in items:
        if here not in item.path.parents or item.get_closest_marker("slurm") is None:
            continue
        kind = item.path.stem.removeprefix("test_")
        try:
            find_programs(needs.get(kind, needs["slurm"]))
        except MissingDependencyError as error:
            item.add_marker(pytest.mark.skip(reason=str(error)))


def wait_until(condition: Callable[[], object], what: str, timeout: float = 30.0) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail(f"waited {timeout} s in vain until {what}")
        time.sleep(0.02)


@pytest.fixture(name="wait_until")
def wait_until_fixture() -> Callable[..., None]:
    return wait_until


def of_lab(root: str) -> list[str]:
    """Every process that has to do with a lab's folder: names it, or has a file of it open."""
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path(f"/proc/{entry}/cmdline").read_bytes()
            words += Path(f"/proc/{entry}/environ").read_bytes()
            folder = f"/proc/{entry}/fd"
            files = " ".join(os.readlink(f"{folder}/{fd}") for fd in os.listdir(folder))
            if root in words.decode(errors="replace") or root in files:
                found.append(f"{entry} {Path(f'/proc/{entry}/comm').read_text().strip()}")
        except OSError:
            continue
    return found


@pytest.fixture
def is_gone() -> Callable[[str], bool]:
    """Whether nothing is left of the lab in a folder: no process and no file."""
    return lambda root: not os.path.exists(root) and not of_lab(root)


class Cli:
    """``python -m slurmmesh.lab`` as a user runs it, in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def environment(self, **extra: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": str(REPOSITORY), **extra}

    def argv(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "slurmmesh.lab", *arguments]

    def run(self, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.argv(*arguments),
            env=self.environment(**extra),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.argv(*arguments),
            env=self.environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture(scope="module")
def lab(outlives_tests: Callable[[Path], object]) -> Iterator[Lab]:
    """One lab of four nodes for the tests of a module."""
    with Lab(4, slurmd_timeout_s=3) as running, outlives_tests(running.root):  # type: ignore[attr-defined]
        yield running

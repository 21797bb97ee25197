"""Tests of the C bridge. A process loads its GPU libraries once, so each test has its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import build

ROOT = Path(__file__).resolve().parent.parent.parent
SOURCES = ROOT / "cbridge"

# What decides which libraries are found; no test gets these from who runs the tests.
VARIABLES = (
    "LD_LIBRARY_PATH",
    "ROCM_PATH",
    "CUDA_HOME",
    "SLURMMESH_GPU_PLATFORM",
    "SLURMMESH_GPU_LIBRARY",
    "SLURMMESH_CCL_LIBRARY",
)

# Loads the library and runs code with it; prints what that leaves in `answer`, or its error.
PROGRAM = """
import json
from slurmmesh.gpu.library import load
answer = {}
{before}
try:
    library = load()
    {code}
except Exception as error:
    answer = {"error": type(error).__name__, "told": str(error), **vars(error)}
print(json.dumps(answer, default=str))
"""

WHERE = """
answer = {kind: library.path(kind) for kind in ("gpu", "runtime", "ccl", "hsa")}
answer["platform"], answer["emulator"] = library.platform, library.emulator
"""

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Ask = Callable[..., dict[str, Any]]


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in VARIABLES}


@pytest.fixture
def run() -> Run:
    """``run(code, SLURMMESH_GPU_PLATFORM="cuda")``: Python code, finished, with its output."""

    def run(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={**clean_environment(), **variables},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def ask(run: Run) -> Ask:
    """``ask(code, before, **variables)``: what code with ``library`` leaves in ``answer``."""

    def ask(code: str, before: str = "", **variables: str) -> dict[str, Any]:
        indented = code.strip().replace("\n", "\n    ")
        program = PROGRAM.replace("{before}", before).replace("{code}", indented)
        done = run(program, **variables)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    return ask


@pytest.fixture(scope="session")
def emulator() -> Callable[[build.Flavour], Path]:
    """The folder of the emulated libraries of a flavour; skips where they cannot be built."""

    def folder(flavour: build.Flavour = "plain") -> Path:
        if shutil.which("gcc") is None:
            pytest.skip("the emulator needs gcc, which is not here")
        return build.emulator(flavour)

    return folder

"""What a shared object has, by the system's own tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def exported(library: Path) -> set[str]:
    """The functions that a shared object has; skips where there is no ``nm``."""
    return _listed("--defined-only", library)


def imported(library: Path) -> set[str]:
    """The functions that a shared object is linked to have from others."""
    return _listed("--undefined-only", library)


def _listed(which: str, library: Path) -> set[str]:
    if shutil.which("nm") is None:
        pytest.skip("there is no nm here to list what a library has")
    done = subprocess.run(["nm", "--dynamic", which, str(library)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}

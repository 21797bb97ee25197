"""What a shared object has, by the system's own tools."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def exported(library: Path) -> set[str]:
    """The functions that a shared object has; skips where there is no ``nm``."""
    if shutil.which("nm") is None:
        pytest.skip("there is no nm here to list what a library has")
    done = subprocess.run(
        ["nm", "--dynamic", "--defined-only", str(library)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return {line.split()[-1].partition("@")[0] for line in done.stdout.splitlines()}

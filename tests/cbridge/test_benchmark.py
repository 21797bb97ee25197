"""The benchmark of the bridge runs, and writes what the README says. No figure is held."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cbridge.conftest import ROOT, clean_environment


@pytest.mark.slow
def test_the_benchmark_measures_every_way(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    few = ("--rounds", "2", "--calls", "10", "--json", str(out))
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.bridge", *few],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(out.read_text())["rows"]
    assert [row["unit"] for row in rows] == ["ns", "ns"]
    for row in rows:
        assert {"cffi", "ctypes"} <= row["peers"].keys()
        assert row["ours"]["n"] == 2

"""The devices that procs see through their masks are those they were given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.running import Gpu

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json
from tests.gpu.programs_masks import shares

print(json.dumps(shares(2, 2)))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "masks"),
    [
        ("rocm-7.1", {"ROCR_VISIBLE_DEVICES": "5,2,3,1"}),
        ("rocm-7.1", {"ROCR_VISIBLE_DEVICES": "1,2,3,4,5", "HIP_VISIBLE_DEVICES": "4,0,1,2"}),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "5,2,3,1"}),
    ],
)
def test_procs_see_their_share(
    emulator: Callable[..., Gpu], name: str, masks: dict[str, str]
) -> None:
    if os.path.exists("/dev/kfd") or os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has GPUs of its own, and masks are understood by its driver")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**emulator(name).environment(devices=6), **masks},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    here, by_proc = json.loads(done.stdout)
    assert len(set(here)) == 4
    assert by_proc == [[[0, here[0]], [1, here[1]]], [[0, here[2]], [1, here[3]]]]

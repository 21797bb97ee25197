"""What the kernel does for us."""

from __future__ import annotations

import subprocess
import sys


def test_a_child_whose_parent_is_gone_already_ends() -> None:
    code = "import os, slurmmesh.linux as linux; linux.die_with_parent(os.getpid()); print('on')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, ""), done.stderr

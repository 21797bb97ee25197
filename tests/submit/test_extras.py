"""What each extra of the package installs."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

EXTRAS = configparser.ConfigParser()
EXTRAS.read(Path(__file__).parents[2] / "setup.cfg")
TRAIN = EXTRAS["options.extras_require"]["train"]


def test_train_asks_for_the_torch_that_torchft_needs() -> None:
    """torchft 0.2 fails at import with an older one."""
    assert re.search(r"^torchft>=0\.2,<0\.3$", TRAIN, re.MULTILINE)
    assert re.search(r"^torch>=2\.7$", TRAIN, re.MULTILINE)


def test_all_needs_no_system_library() -> None:
    """pyverbs builds against the machine's rdma-core, which most machines do not have."""
    assert "rdma" not in EXTRAS["options.extras_require"]["all"]
    assert "pyverbs" in EXTRAS["options.extras_require"]["rdma"]

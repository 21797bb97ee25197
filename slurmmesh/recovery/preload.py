"""What a host imports once, so that a replica forked from it starts training in milliseconds.

Importing this module imports torch, TorchFT and what both import only on first use. It starts
no thread and touches no device.
"""

from __future__ import annotations

import logging
import os

# Read by TorchFT's native part when it is imported. It writes several lines a step otherwise.
os.environ.setdefault("RUST_LOG", "error")
# Warns in every replica of a cost that TorchFT accepts on purpose.
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
# A failed collective is an ordinary event here; TorchFT logs each with its traceback.
logging.getLogger("torchft.manager").setLevel(logging.CRITICAL)

import torch  # noqa: E402
import torch._dynamo  # noqa: E402
import torchft  # noqa: E402
import torchft.coordination  # noqa: E402

from slurmmesh.recovery import ddp, diloco, replica  # noqa: E402

__all__ = ["ddp", "diloco", "replica", "torch", "torchft"]

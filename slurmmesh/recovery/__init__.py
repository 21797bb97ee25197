"""Training that survives the death of replicas, on TorchFT. See ``docs/recovery.md``.

Importing this loads no torch; :func:`train` and the replicas do.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from slurmmesh.recovery.control import RunOver
from slurmmesh.recovery.errors import NoQuorum, StateLost
from slurmmesh.recovery.requirements import require_torch
from slurmmesh.recovery.run import RunResult, train
from slurmmesh.recovery.settings import RecoverySettings

if TYPE_CHECKING:
    from slurmmesh.recovery.ddp import DdpSession
    from slurmmesh.recovery.diloco import DilocoSession
    from slurmmesh.recovery.replica import Replica
    from slurmmesh.recovery.session import Step

__all__ = [
    "DdpSession",
    "DilocoSession",
    "NoQuorum",
    "RecoverySettings",
    "Replica",
    "RunOver",
    "RunResult",
    "StateLost",
    "Step",
    "require_torch",
    "train",
]

_WITH_TORCH = {
    "DdpSession": "slurmmesh.recovery.ddp",
    "DilocoSession": "slurmmesh.recovery.diloco",
    "Replica": "slurmmesh.recovery.replica",
    "Step": "slurmmesh.recovery.session",
}


def __getattr__(name: str) -> Any:
    if name in _WITH_TORCH:
        return getattr(importlib.import_module(_WITH_TORCH[name]), name)
    raise AttributeError(f"module 'slurmmesh.recovery' has no attribute {name!r}")

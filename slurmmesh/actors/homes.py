"""Where a proc finds the class of an actor."""

from __future__ import annotations

import sys
from typing import Any


def home_of(cls: type) -> str:
    """The module that a proc imports for a class; empty if none: the class travels by value.

    Also empty for those of slurmmesh.
    """
    name = cls.__module__
    found: Any = sys.modules.get(name)
    if name.partition(".")[0] in ("__main__", "slurmmesh") or not getattr(found, "__spec__", None):
        return ""
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    return name if found is cls else ""

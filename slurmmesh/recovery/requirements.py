"""Whether what training needs is installed, asked before anything starts."""

from __future__ import annotations

import importlib.util

from slurmmesh.errors import MissingDependencyError

PRELOAD = "slurmmesh.recovery.preload"
"""The module that a host imports once for all processes of a run."""


def require_torch() -> None:
    """Check that torch and torchft can be imported, without importing them.

    Raises:
        MissingDependencyError: one is missing; the text has the line that installs it.
    """
    missing = [name for name in ("torch", "torchft") if importlib.util.find_spec(name) is None]
    if missing:
        # The versions are in the package's extra alone.
        raise MissingDependencyError(
            f"training needs {' and '.join(missing)}: first the torch wheel for your platform, "
            "then the extra: pip install 'slurmmesh[train]' "
            "(in a clone: pip install -e '.[train]')"
        )

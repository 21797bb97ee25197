"""Whether what training needs is installed, asked before anything starts."""

from __future__ import annotations

import importlib.util

from slurmmesh.errors import MissingDependencyError

_NEEDED = {
    "torch": "torch>=2.7",
    "torchft": "torchft>=0.2,<0.3",
}


def require_torch() -> None:
    """Check that torch and torchft can be imported, without importing them.

    Raises:
        MissingDependencyError: one is missing; the text has the line that installs it.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        line = " ".join(f"'{_NEEDED[name]}'" for name in missing)
        raise MissingDependencyError(
            f"training needs {' and '.join(missing)}: pip install {line}\n"
            "(or all of it: pip install 'slurmmesh[train]')"
        )

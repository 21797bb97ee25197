"""Makes ``synthetic_runs`` importable, however pytest was started, and warms matplotlib up."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import pytest

from slurmmesh.errors import MissingDependencyError

_HERE = Path(__file__).parent
sys.path.insert(0, str(_HERE))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Draw once before the first test: matplotlib keeps the fonts it used open, in a cache."""
    if any(item.path == _HERE / "test_report.py" for item in session.items):
        from synthetic_runs import simulate

        from slurmmesh.telemetry import plots
        from slurmmesh.telemetry.history import fold

        with contextlib.suppress(MissingDependencyError):
            plots.draw(fold(simulate().events))

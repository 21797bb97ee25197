"""What an environment variable may be called. Pure."""

from __future__ import annotations

import re

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_variable(name: str) -> bool:
    """Whether a shell takes ``name`` for that of a variable."""
    return _NAME.fullmatch(name) is not None

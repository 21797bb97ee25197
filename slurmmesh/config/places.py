"""Paths as they stand in settings. Pure but for the list of users."""

from __future__ import annotations

import os
import pwd
from collections.abc import Mapping


def home_of(environ: Mapping[str, str]) -> str | None:
    """The home folder of whoever has this environment; None if nobody knows."""
    if home := environ.get("HOME"):
        return home
    try:
        return pwd.getpwuid(os.geteuid()).pw_dir
    except KeyError:
        return None


def expand(text: str, home: str | None) -> str:
    """``~`` at the beginning is a home folder; nothing else is replaced.

    Raises:
        ValueError: that home folder is not known.
    """
    if not text.startswith("~"):
        return text
    first, slash, rest = text.partition("/")
    found = home if first == "~" else os.path.expanduser(first)
    if not found or found.startswith("~"):
        raise ValueError(f"begins with {first}, and no such home folder is known")
    return found + slash + rest


def absolute(text: str, folder: str, home: str | None) -> str:
    """A path that does not depend on the working folder: relative ones are meant from ``folder``.

    Raises:
        ValueError: as of ``expand``.
    """
    return os.path.normpath(os.path.join(folder, expand(text, home)))

"""Python and the packages that matter, without importing them."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from slurmmesh._version import __version__
from slurmmesh.doctor.checks import Check

SECTION = "Python"
_PACKAGES = ("torch", "torchft", "numpy", "submitit", "uvloop", "mpi4py")
_NEEDED = ("submitit",)
_BUILD = re.compile(r"^(cuda|hip)\b[^=\n]*=\s*['\"]([^'\"]+)['\"]", re.MULTILINE)


def checks() -> Iterator[Check]:
    """Python itself, slurmmesh, and what is installed beside it."""
    yield Check(SECTION, "python", "ok", f"{platform.python_version()} ({sys.executable})")
    yield Check(SECTION, "slurmmesh", "ok", f"{__version__} ({Path(__file__).parents[1]})")
    for name in _PACKAGES:
        version = version_of(name)
        if version:
            yield Check(SECTION, name, "ok", version)
        elif name in _NEEDED:
            yield Check(SECTION, name, "error", "not installed", f"pip install {name}")
        elif name in ("torch", "torchft"):
            advice = "pip install slurmmesh[train], with the torch of your GPUs, to train"
            yield Check(SECTION, name, "note", "not installed", advice)


def version_of(package: str) -> str:
    """Empty if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def torch_build() -> tuple[str, str] | None:
    """For what torch was built: (``rocm`` or ``cuda``, its version), or ("", "") for CPUs.

    None if torch is not installed, or does not tell.
    """
    try:
        spec = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations if spec else None) or ():
        try:
            text = Path(os.fspath(folder), "version.py").read_text()
        except (OSError, UnicodeDecodeError):
            continue
        found = dict(_BUILD.findall(text))
        if "hip" in found:
            return "rocm", found["hip"]
        return ("cuda", found["cuda"]) if "cuda" in found else ("", "")
    return None

"""Questions that may crash or hang who asks: they are asked in a child process, for a while.

``ask`` runs a function of this module there, and says what it told and how it ended. The child's
answers come through memory that both have, as a line of JSON each, so what it told before a crash
is there; what libraries print goes elsewhere, and its end is told with a failure.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple

from slurmmesh.linux import kill_group, python_command

_LAST_WORDS_BYTES = 2000
_KILLED_S = 2.0
"""How long a child that was killed may take to be gone; one that hangs in a driver is left."""

Tell = Callable[..., None]


class Told(NamedTuple):
    """What a child told: values by name, and in words how it failed; empty if it did not."""

    values: dict[str, Any]
    failure: str = ""


def ask(function: str, *arguments: str, timeout_s: float) -> Told:
    """Ask in a child process. It is gone afterwards, or will be when the kernel lets it.

    Raises OSError if no process can be started.
    """
    with (
        open(os.memfd_create("told"), "rb") as told,
        open(os.memfd_create("printed"), "rb") as printed,
    ):
        process = subprocess.Popen(
            python_command(__name__, str(told.fileno()), function, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=printed.fileno(),
            stderr=printed.fileno(),
            pass_fds=[told.fileno()],
            start_new_session=True,
        )
        code = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(timeout_s)
        finally:
            if code is None:
                kill_group(process.pid)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_KILLED_S)
        values: dict[str, Any] = {}
        told.seek(0)
        for line in told.read().splitlines():
            with contextlib.suppress(ValueError):  # it was killed while it wrote
                values.update(json.loads(line))
        printed.seek(0)
        return Told(values, _failure(code, values, printed.read(), timeout_s))


def _failure(code: int | None, values: dict[str, Any], printed: bytes, timeout_s: float) -> str:
    if code == 0 and values.get("done"):
        return ""
    doing = values.get("doing", "starting")
    if code is None:
        return f"no answer within {timeout_s:g} s while {doing}"
    words = printed[-_LAST_WORDS_BYTES:].decode(errors="replace").strip().splitlines()
    said = f": {words[-1]}" if words else ""
    ended = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"it {ended} while {doing}{said}"


def main() -> None:
    """Entry of the child: descriptor to tell by, function, its arguments."""
    fd, function, *arguments = sys.argv[1:]

    def tell(**values: Any) -> None:
        os.write(int(fd), json.dumps(values).encode() + b"\n")

    _FUNCTIONS[function](tell, *arguments)
    tell(done=True)  # a library may end the process at any time


# ------------------------------------------------------------------ the questions


def gpus(tell: Tell) -> None:
    """What slurmmesh.gpu has of libraries and devices. An error is an answer too."""
    import importlib.util

    from slurmmesh.errors import ConfigError, GpuError, GpuUnavailable
    from slurmmesh.gpu import devices, platform
    from slurmmesh.gpu.library import load

    built = {name: importlib.util.find_spec(f"slurmmesh._cffi.{name}") for name in _BRIDGES}
    tell(doing="loading the GPU libraries", built=[name for name, spec in built.items() if spec])
    try:
        library = load()
    except GpuUnavailable as error:
        tell(unavailable=error.text, searched=error.searched)
        return
    except ConfigError as error:
        tell(config=str(error))
        return
    rows = [row for row in library.symbols() if getattr(row, _NAME_OF[library.platform])]
    found = platform()
    tell(
        platform=asdict(found),
        linked=library.linked,
        missing=[row.neutral for row in rows if not row.present and row.neutral not in _OURS],
        symbols=len(rows),
        doing="asking for the libraries' versions",
    )
    tell(versions=asdict(found.versions()), doing="asking for devices")
    try:
        tell(devices=[asdict(each) for each in devices()])
    except GpuError as error:
        tell(no_devices=str(error))


_BRIDGES = ("_bridge", "_bridge_linked")
_NAME_OF = {"rocm": "hip", "cuda": "cuda"}
_OURS = ("emulator_version",)


def folder(tell: Tell, path: str) -> None:
    """Whether files can be made in a folder, or the folder can be."""
    tell(doing=f"writing to {path}")
    there = path
    while not os.path.exists(there) and os.path.dirname(there) != there:
        there = os.path.dirname(there)
    try:
        if there == path:
            with tempfile.TemporaryFile(dir=path):
                pass
            room = os.statvfs(path)
            tell(free_gib=room.f_bavail * room.f_frsize / 2**30)
        elif not (os.path.isdir(there) and os.access(there, os.W_OK | os.X_OK)):
            tell(refused=f"it is not there, and {there} does not let you make it")
    except OSError as error:
        tell(refused=error.strerror or str(error))
    tell(exists=there == path)


_FUNCTIONS: dict[str, Callable[..., None]] = {"gpus": gpus, "folder": folder}

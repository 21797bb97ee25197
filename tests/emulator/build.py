"""Builds the emulator of the GPU libraries: ``emulator()`` is a folder for LD_LIBRARY_PATH.

Flavours:

- ``plain``: HIP 7.1 with RCCL 2.27 (libamdhip64.so.7, librccl.so.1, libhsa-runtime64.so.1) and
  CUDA 13 (libcuda.so.1, libcudart.so.13, libnccl.so.2).
- ``old``: HIP 6.4 with RCCL 2.13 (libamdhip64.so.6, librccl.so.1, libhsa-runtime64.so.1), without
  the calls that those do not have: hipMemGetHandleForAddressRange, and of RCCL the later ones.
- ``asan``: as ``plain``, with AddressSanitizer and UndefinedBehaviorSanitizer.

``environment()`` sets up a child process for one of these folders. Settings are environment
variables SLURMMESH_EMULATOR_*, each read in the process that calls: DEVICES (1), MEMORY (bytes of
each device, for each process), HIP_VERSION ("7.1"), CUDA_VERSION ("13.0"), CCL_VERSION, DMABUF=0
(no dma-bufs), SILENT=1 (peers that die are not noticed). docs: README.md here.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Flavour = Literal["plain", "old", "asan"]

SOURCES = Path(__file__).resolve().parent
CACHE = SOURCES.parent.parent / "build" / "emulator"
_KEPT_S = 24 * 3600

WARNINGS = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wstrict-prototypes"]
FLAGS = ["-std=c17", "-D_GNU_SOURCE", "-fPIC", "-shared", "-pthread", "-fvisibility=hidden", "-g"]
SANITIZERS = "-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer"

_CORE = (
    "status.c",
    "settings.c",
    "device.c",
    "memory.c",
    "ranges.c",
    "stream.c",
    "copy.c",
    "vmm.c",
)
_COLLECTIVES = (
    "settings.c",
    "ccl_api.c",
    "ccl_collectives.c",
    "ccl_comm.c",
    "ccl_group.c",
    "ccl_numbers.c",
    "ccl_transfer.c",
    "ccl_world.c",
)


class BuildFailed(Exception):
    """The compiler is missing or refused a source; the text is what it said."""


@dataclass(frozen=True)
class Library:
    """A shared library: its soname, sources, macros, and which of the others it is linked to."""

    name: str
    sources: tuple[str, ...]
    macros: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()


def libraries(flavour: Flavour) -> tuple[Library, ...]:
    """What a flavour consists of, each after what it needs."""
    old = ("EMULATOR_OLD",) if flavour == "old" else ()
    hip = "libamdhip64.so.6" if old else "libamdhip64.so.7"
    collectives = _COLLECTIVES if old else (*_COLLECTIVES, "ccl_regroup.c")
    rocm = (
        Library(hip, (*_CORE, "hip.c"), old),
        Library("libhsa-runtime64.so.1", ("hsa.c",), old, (hip,)),
        Library("librccl.so.1", collectives, old, (hip,)),
    )
    if old:
        return rocm
    driver, cuda = "libcuda.so.1", ("EMULATOR_CUDA",)
    return (
        *rocm,
        Library(driver, (*_CORE, "cuda.c"), cuda),
        Library("libcudart.so.13", ("cudart.c",), cuda, (driver,)),
        Library("libnccl.so.2", collectives, cuda, (driver,)),
    )


def emulator(flavour: Flavour = "plain", cache: Path | None = None) -> Path:
    """The folder with the libraries of a flavour: built, or found built from the same sources.

    Several processes may ask at once. Raises ``BuildFailed``.
    """
    cache = cache or CACHE
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{flavour}-{_fingerprint(flavour)}"
    if folder.is_dir():
        return folder
    with open(cache / f"{flavour}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        unfinished = Path(tempfile.mkdtemp(prefix=f"{flavour}-unfinished-", dir=cache))
        try:
            for library in libraries(flavour):
                _compile(library, flavour, unfinished)
            unfinished.chmod(0o755)
            unfinished.rename(folder)
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
        # Built from older sources, or left by a build that was killed; nobody uses it any more.
        for other in cache.glob(f"{flavour}-*"):
            if time.time() - other.stat().st_mtime > _KEPT_S and other != folder:
                shutil.rmtree(other, ignore_errors=True)
    return folder


def environment(
    folder: Path, base: Mapping[str, str] | None = None, **settings: str | int
) -> dict[str, str]:
    """The environment for a child that shall find the libraries of ``folder``.

    ``base`` is what it is made from (default: this process's environment); ``settings`` are those
    of the emulator in lower case: ``devices=4``.
    """
    made = dict(os.environ if base is None else base)
    before = made.get("LD_LIBRARY_PATH")
    made["LD_LIBRARY_PATH"] = f"{folder}:{before}" if before else str(folder)
    if folder.name.startswith("asan"):
        # The runtime of AddressSanitizer must be the first library of a process; Python's own
        # memory at exit is not looked at; each library has a mark of the same name.
        made["LD_PRELOAD"] = _output("gcc", "-print-file-name=libasan.so")
        made["ASAN_OPTIONS"] = "detect_leaks=0:detect_odr_violation=0:abort_on_error=1"
        made["UBSAN_OPTIONS"] = "print_stacktrace=1:halt_on_error=1"
    for name, value in settings.items():
        made[f"SLURMMESH_EMULATOR_{name.upper()}"] = str(value)
    return made


def _compiler(flavour: Flavour) -> str:
    # The library that LD_PRELOAD names is gcc's.
    return "gcc" if flavour == "asan" else os.environ.get("CC", "cc")


def _fingerprint(flavour: Flavour) -> str:
    """Changes when a source, the way it is built or the compiler does."""
    digest = hashlib.sha256(Path(__file__).read_bytes())
    digest.update(str(shutil.which(_compiler(flavour))).encode())
    for source in sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.h")]):
        digest.update(source.name.encode() + b"\0" + source.read_bytes())
    return digest.hexdigest()[:16]


def _compile(library: Library, flavour: Flavour, folder: Path) -> None:
    sanitize = SANITIZERS.split() if flavour == "asan" else ["-Wl,-z,defs"]
    _output(
        _compiler(flavour),
        *FLAGS,
        *WARNINGS,
        "-Werror",
        "-O1" if flavour == "asan" else "-O2",
        *sanitize,
        *(f"-D{macro}" for macro in library.macros),
        f"-Wl,-soname,{library.name}",
        "-Wl,-rpath,$ORIGIN",
        "-o",
        str(folder / library.name),
        *(str(SOURCES / source) for source in library.sources),
        *(str(folder / needed) for needed in library.needs),
        "-lm",
    )


def _output(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise BuildFailed(f"the emulator needs a C compiler: {error}") from error
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stderr}")
    return done.stdout.strip()

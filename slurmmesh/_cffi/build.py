"""Makes the C bridge when slurmmesh is installed: ``setup.py`` takes two names from here.

``SLURMMESH_GPU_PLATFORM``, in the environment of ``pip install``, decides what is made:

- ``auto`` (or unset): ``_bridge``, and ``_bridge_linked`` too if ROCm is found. Where there is no C
  compiler or no Python headers neither is made; a line says so, and the rest is installed.
- ``rocm``: both, or the installation fails.
- ``cuda``, ``none``: only ``_bridge``, as with ``auto``.

This runs before slurmmesh can be imported, so it imports nothing of it.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from cffi import FFI
from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError

PLATFORMS = ("auto", "rocm", "cuda", "none")
SOURCES = Path("cbridge")  # relative to the top of the repository, where a build runs
HEADER = "slurmmesh_bridge.h"
LIBRARIES = ("amdhip64", "rccl")

# Of capsule.h, for PyCapsule_New.
CAPSULE = """
extern const char sm_capsule_name[];
void sm_capsule_end(void *capsule);
void sm_capsule_start(void);
"""
# Using one function of each library keeps them among what the module needs, under --as-needed too.
LINKED = """
extern int hipGetDeviceCount(int *count);
extern int ncclGetVersion(int *version);
__attribute__((used)) static int (*const sm_linked[])(int *) = {hipGetDeviceCount, ncclGetVersion};
"""


def declarations() -> str:
    """The header as cffi reads it, without lines for the preprocessor; and the capsule's parts."""
    header = (SOURCES / HEADER).read_text()
    return re.sub(r"^\s*#.*$", "", header, flags=re.MULTILINE) + CAPSULE


def wanted_platform() -> str:
    """``SLURMMESH_GPU_PLATFORM``, checked."""
    wanted = os.environ.get("SLURMMESH_GPU_PLATFORM") or "auto"
    if wanted not in PLATFORMS:
        raise SystemExit(f"SLURMMESH_GPU_PLATFORM={wanted}: it is one of {', '.join(PLATFORMS)}.")
    return wanted


# ------------------------------------------------------------------ ROCm


def find_rocm() -> tuple[Path | None, list[str]]:
    """The folder with ROCm's libraries, and a line for each place that was looked in.

    The folder is ``Path()`` where the linker finds them by itself, None where they are not.
    """
    searched: list[str] = []
    for origin, root in rocm_roots():
        for folder in (root / "lib", root / "lib64"):
            missing = [n for n in LIBRARIES if not (folder / f"lib{n}.so").exists()]
            if not missing:
                return folder, searched
            missing_names = " and ".join(f"lib{n}.so" for n in missing)
            searched.append(f"{origin}: no {missing_names} in {folder}")
    problem = link_problem()
    if problem is None:
        return Path(), searched
    return None, [*searched, f"the linker's own folders: {problem}"]


def rocm_roots() -> list[tuple[str, Path]]:
    """Where ROCm may be installed, with who says so."""
    roots = []
    if path := os.environ.get("ROCM_PATH"):
        roots.append(("ROCM_PATH", Path(path)))
    roots.append(("the usual place", Path("/opt/rocm")))
    if hipconfig := shutil.which("hipconfig"):
        told = subprocess.run([hipconfig, "--rocmpath"], capture_output=True, text=True)
        if told.returncode == 0 and told.stdout.strip():
            roots.append(("hipconfig", Path(told.stdout.strip())))
    return roots


def link_problem() -> str | None:
    """Why the linker does not find ROCm's libraries by itself; None if it does."""
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    flags = shlex.split(os.environ.get("LDFLAGS", ""))
    with tempfile.TemporaryDirectory() as folder:
        output = str(Path(folder) / "linked.so")
        wanted = [f"-l{name}" for name in LIBRARIES]
        try:
            done = subprocess.run(
                [*shlex.split(compiler), "-shared", "-o", output, *flags, *wanted],
                capture_output=True,
                text=True,
            )
        except OSError as error:
            return str(error)
    lines = done.stderr.strip().splitlines() or [f"{compiler} ended with {done.returncode}"]
    return None if done.returncode == 0 else lines[0]


# ------------------------------------------------------------------ the build


def extensions() -> list[Extension]:
    """What is to be built here. The first source of each is made by ``BuildExt``."""
    platform = wanted_platform()
    found = [extension("_bridge", optional=platform != "rocm")]
    folder, searched = find_rocm() if platform in ("auto", "rocm") else (None, [])
    if folder is not None:
        linked = extension("_bridge_linked", optional=platform != "rocm")
        linked.libraries = [*LIBRARIES, *linked.libraries]
        if folder != Path():
            linked.library_dirs = linked.runtime_library_dirs = [str(folder)]
        found.append(linked)
    elif platform == "rocm":
        lines = "".join(f"\n  {line}" for line in searched)
        raise SystemExit(
            f"SLURMMESH_GPU_PLATFORM=rocm, but ROCm is not found:{lines}\n"
            "Set ROCM_PATH to where it is, or install without SLURMMESH_GPU_PLATFORM."
        )
    return found


def extension(name: str, optional: bool) -> Extension:
    """One module, as it is compiled; optional: an installation does without it."""
    return Extension(
        f"slurmmesh._cffi.{name}",
        sources=sorted(map(str, SOURCES.glob("*.c"))),
        depends=[*sorted(map(str, SOURCES.glob("*.h"))), "slurmmesh/_cffi/build.py"],
        include_dirs=[str(SOURCES)],
        # capsule.h asks who has Python's lock, which is not in the limited API.
        define_macros=[("_GNU_SOURCE", None), ("_CFFI_NO_LIMITED_API", None)],
        extra_compile_args=["-std=c17", "-O2", "-fvisibility=hidden", "-pthread"],
        extra_link_args=["-pthread"],
        libraries=["dl"],
        optional=optional,
    )


def generate(name: str, path: Path) -> None:
    """Write the C file of the module ``slurmmesh._cffi.<name>``."""
    builder = FFI()
    builder.cdef(declarations())
    preamble = LINKED if name == "_bridge_linked" else ""
    builder.set_source(f"slurmmesh._cffi.{name}", f'#include "capsule.h"\n{preamble}')
    path.parent.mkdir(parents=True, exist_ok=True)
    builder.emit_c_code(str(path))


class BuildExt(build_ext):
    """Builds the modules; those that are optional and cannot be built are left out, with a line."""

    def build_extension(self, ext: Extension) -> None:
        name = ext.name.rpartition(".")[2]
        generated = Path(self.build_temp) / f"{name}.c"
        generate(name, generated)
        ext.sources = [str(generated), *ext.sources]
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError) as error:
            if not ext.optional:
                raise
            self.warn(
                f"{ext.name} was not built, so slurmmesh.gpu will not work: {error}. It needs a C "
                "compiler and Python's headers (Debian: gcc, python3-dev)."
            )

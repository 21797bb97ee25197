"""What an installation makes of the C bridge: without a compiler, with ROCm and without."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbridge.conftest import ROOT, clean_environment
from tests.emulator import build

pytestmark = pytest.mark.slow

Emulator = Callable[[build.Flavour], Path]
Done = subprocess.CompletedProcess

PARTS = ("setup.py", "setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE")
FOLDERS = ("cbridge", "slurmmesh", "sbatch_templates")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A copy of what the package is built from, without anything that was built."""
    copy = tmp_path / "source"
    copy.mkdir()
    for name in PARTS:
        shutil.copy(ROOT / name, copy)
    built = shutil.ignore_patterns("*.so", "__pycache__", ".*cache")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=built)
    return copy


def python(*arguments: str, cwd: Path, **variables: str) -> Done[str]:
    environment = {**clean_environment(), "CFLAGS": "-O0", **variables}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True
    )


def fine(done: Done[str]) -> str:
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def build_in_place(source: Path, **variables: str) -> Done[str]:
    return python("setup.py", "--quiet", "build_ext", "--inplace", cwd=source, **variables)


def built(source: Path) -> list[str]:
    """The names of the modules that are there."""
    return sorted(
        path.name.partition(".")[0] for path in (source / "slurmmesh" / "_cffi").glob("*.so")
    )


def has_rocm() -> bool:
    return Path("/opt/rocm/lib/libamdhip64.so").exists() or bool(shutil.which("hipconfig"))


@pytest.fixture
def rocm(emulator: Emulator, tmp_path: Path) -> Path:
    """A folder as ROCM_PATH names it: the emulator, with the names that a linker looks for."""
    folder = emulator("plain")
    if not (folder / "librccl.so.1").exists():
        pytest.skip("the emulator has no collectives")
    libraries = tmp_path / "rocm" / "lib"
    shutil.copytree(folder, libraries)
    (libraries / "libamdhip64.so").symlink_to("libamdhip64.so.7")
    (libraries / "librccl.so").symlink_to("librccl.so.1")
    return libraries.parent


# ------------------------------------------------------------------ packages


def test_a_wheel_is_built_from_the_source_package(source: Path, tmp_path: Path) -> None:
    build_it = ("-m", "build", "--no-isolation", "--sdist", "--outdir", str(tmp_path))
    fine(python(*build_it, cwd=source))
    (package,) = tmp_path.glob("slurmmesh-*.tar.gz")
    with tarfile.open(package) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    sources = {
        f"cbridge/{p.name}" for p in (ROOT / "cbridge").iterdir() if p.suffix in {".c", ".h"}
    }
    assert sources <= names
    wheel = ("-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index")
    fine(python(*wheel, "--wheel-dir", str(tmp_path), str(package), cwd=tmp_path))
    (found,) = tmp_path.glob("slurmmesh-*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(found) as archive:
        archive.extractall(site)
    assert built(site) == ["_bridge"]
    code = "from slurmmesh._cffi import _bridge; print(_bridge.lib.sm_loaded_platform(), _bridge)"
    printed = fine(python("-c", code, cwd=tmp_path, PYTHONPATH=str(site)))
    assert printed.startswith("0 ")
    assert str(site) in printed


NO_HEADERS = """#!/bin/sh
echo "_bridge.c:50:10: fatal error: Python.h: No such file or directory" >&2
exit 1
"""


@pytest.mark.parametrize("lacking", ["compiler", "headers"])
def test_without_a_compiler_the_rest_is_installed(
    source: Path, tmp_path: Path, lacking: str
) -> None:
    compiler = tmp_path / "cc"
    if lacking == "headers":
        compiler.write_text(NO_HEADERS)
        compiler.chmod(0o755)
    wheel = ("-m", "pip", "wheel", "-v", "--no-deps", "--no-build-isolation", "--no-index")
    told = fine(python(*wheel, "--wheel-dir", ".", str(source), cwd=tmp_path, CC=str(compiler)))
    (line,) = [line for line in told.splitlines() if "slurmmesh.gpu will not work" in line]
    assert "Debian: gcc, python3-dev" in line
    (found,) = tmp_path.glob("slurmmesh-*.whl")
    names = zipfile.ZipFile(found).namelist()
    assert "slurmmesh/gpu/library.py" in names
    assert not [name for name in names if name.endswith(".so")]


def test_a_change_of_the_c_code_is_built(source: Path) -> None:
    def age() -> int:
        (module,) = (source / "slurmmesh" / "_cffi").glob("_bridge.*.so")
        return module.stat().st_mtime_ns

    fine(build_in_place(source))
    first = age()
    fine(build_in_place(source))
    assert age() == first
    header = source / "cbridge" / "symbols.h"
    later = first + 10**9
    os.utime(header, ns=(later, later))
    fine(build_in_place(source))
    assert age() != first


# ------------------------------------------------------------------ ROCm


def test_rocm_is_wanted_and_not_there(source: Path, tmp_path: Path) -> None:
    if has_rocm():
        pytest.skip("ROCm is installed here")
    variables = {"SLURMMESH_GPU_PLATFORM": "rocm", "ROCM_PATH": str(tmp_path / "none")}
    done = build_in_place(source, **variables)
    told = done.stdout + done.stderr
    assert done.returncode != 0
    assert "Traceback" not in told
    assert told.count("ROCm is not found") == 1
    for place in (str(tmp_path / "none" / "lib"), "/opt/rocm/lib", "the linker's own folders"):
        assert place in told
    assert built(source) == []


def test_a_platform_that_does_not_exist(source: Path) -> None:
    done = build_in_place(source, SLURMMESH_GPU_PLATFORM="hip")
    assert done.returncode != 0
    assert "SLURMMESH_GPU_PLATFORM=hip: it is one of auto, rocm, cuda, none" in done.stderr


def test_rocm_is_wanted_and_a_compiler_is_not_there(source: Path, rocm: Path) -> None:
    variables = {"SLURMMESH_GPU_PLATFORM": "rocm", "ROCM_PATH": str(rocm)}
    done = build_in_place(source, CC="/nowhere/cc", **variables)
    assert done.returncode != 0
    assert built(source) == []


WHICH = """
from slurmmesh.gpu.library import load
library = load()
print(library.linked, library.path("gpu"), library.path("ccl"), *library.searched())
"""


def test_where_rocm_is_there_is_a_linked_variant(source: Path, rocm: Path, tmp_path: Path) -> None:
    variables = {"SLURMMESH_GPU_PLATFORM": "rocm", "ROCM_PATH": str(rocm)}
    fine(build_in_place(source, LDFLAGS="-Wl,--as-needed", **variables))
    assert built(source) == ["_bridge", "_bridge_linked"]
    (module,) = (source / "slurmmesh" / "_cffi").glob("_bridge_linked.*.so")
    needed = subprocess.run(["ldd", str(module)], capture_output=True, text=True).stdout
    for name in ("libamdhip64.so.7", "librccl.so.1"):
        assert f"{name} => {rocm / 'lib' / name}" in needed

    said = fine(python("-c", WHICH, cwd=source)).split()
    assert said == ["True", *(str(rocm / "lib" / n) for n in ("libamdhip64.so.7", "librccl.so.1"))]
    # LD_LIBRARY_PATH comes before the folder that it was built with.
    other = shutil.copytree(rocm / "lib", tmp_path / "other")
    said = fine(python("-c", WHICH, cwd=source, LD_LIBRARY_PATH=str(other))).split()
    assert said[:2] == ["True", str(other / "libamdhip64.so.7")]
    # Where it cannot be loaded, the other one looks further, and both say so.
    shutil.rmtree(rocm)
    done = python("-c", WHICH, cwd=source)
    assert done.returncode != 0
    assert "the bridge that is linked against ROCm: lib" in done.stderr
    assert "libamdhip64.so.5: cannot open" in done.stderr


PLAN = """
import runpy
for each in runpy.run_path("slurmmesh/_cffi/build.py")["extensions"]():
    print(each.name.rpartition(".")[2], each.optional)
"""


@pytest.mark.parametrize(
    ("platform", "plan"),
    [
        ("", {"_bridge": "True", "_bridge_linked": "True"}),
        ("auto", {"_bridge": "True", "_bridge_linked": "True"}),
        ("rocm", {"_bridge": "False", "_bridge_linked": "False"}),
        ("cuda", {"_bridge": "True"}),
        ("none", {"_bridge": "True"}),
    ],
)
def test_what_is_built_where_rocm_is(rocm: Path, platform: str, plan: dict[str, str]) -> None:
    variables = {"SLURMMESH_GPU_PLATFORM": platform, "ROCM_PATH": str(rocm)}
    words = fine(python("-c", PLAN, cwd=ROOT, **variables)).split()
    assert dict(zip(words[::2], words[1::2], strict=True)) == plan

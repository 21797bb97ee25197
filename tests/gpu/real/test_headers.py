"""The bridge's layouts, numbers and function types against the libraries' own headers.

The compiler is the judge: the bridge's private headers (``cbridge/layouts.h`` and ``symbols.h``)
are compiled together with each real one.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.gpu.real.exports import exported
from tests.gpu.real.libraries import ROOT, Libraries

HERE = Path(__file__).parent
ROW = re.compile(r'ROW\((\w+), "(\w*)", "(\w*)", (\w+),')
Find = Callable[[str], Libraries]


@dataclass(frozen=True)
class Header:
    """A library's header, and the library itself."""

    source: str
    platform: str
    kind: str
    include: str
    library: str

    def __str__(self) -> str:
        return f"{self.source}-{self.include}"


HIP = "hip/hip_runtime_api.h"
HSA = "hsa/hsa_ext_amd.h"
HEADERS = [
    Header("debian-12", "hip", "GPU", HIP, "libamdhip64.so.*"),
    Header("debian-13", "hip", "GPU", HIP, "libamdhip64.so.*"),
    Header("debian-unstable", "hip", "GPU", HIP, "libamdhip64.so.*"),
    Header("debian-13", "hip", "HSA", HSA, "libhsa-runtime64.so.*"),
    Header("debian-unstable", "hip", "HSA", HSA, "libhsa-runtime64.so.*"),
    Header("debian-13", "hip", "CCL", "rccl/rccl.h", "librccl.so.*"),
    Header("pypi", "cuda", "CCL", "nccl.h", "libnccl.so.*"),
    Header("pypi", "cuda", "RUNTIME", "cuda_runtime_api.h", "libcudart.so.*"),
]
DRIVER = Header("pypi", "cuda", "GPU", "cuda.h", "")


def compile_(libraries: Libraries, *arguments: str) -> subprocess.CompletedProcess[str]:
    compiler = "c++" if "-xc++" in arguments else "cc"
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler} here to hold the headers together")
    includes = [part for path in libraries.includes for part in ("-isystem", str(path))]
    return subprocess.run(
        [compiler, *includes, "-I", str(ROOT / "cbridge"), *arguments],
        capture_output=True,
        text=True,
        env={**libraries.environment(), "LC_ALL": "C"},
    )


def check_layouts(libraries: Libraries, which: str) -> list[str]:
    """What does not fit, one line each."""
    flags = ("-std=c17", "-fsyntax-only", "-fmax-errors=0", f"-DWITH_{which}")
    done = compile_(libraries, *flags, str(HERE / "layouts.c"))
    wrong = re.findall(r"error: (.*)", done.stderr)
    assert bool(wrong) == bool(done.returncode), done.stderr
    return wrong


@pytest.mark.parametrize(
    ("source", "which"),
    [
        ("debian-13", "HIP"),
        ("debian-unstable", "HIP"),
        ("debian-13", "RCCL"),
        ("pypi", "CUDA"),
        ("pypi", "NCCL"),
    ],
)
def test_layouts_are_those_of_the_header(libraries: Find, source: str, which: str) -> None:
    assert check_layouts(libraries(source), which) == []


def test_hip_5_2_lays_out_allocations_otherwise(libraries: Find) -> None:
    """Which is why the bridge refuses memory mapping below 5.7; all else fits."""
    wrong = check_layouts(libraries("debian-12"), "HIP")
    asserted = [line for line in wrong if line.startswith("static assertion")]
    assert asserted
    assert all("struct sm_allocation" in line for line in asserted)
    others = {line for line in wrong if line not in asserted}
    assert all("allocFlags" in line or "not an integer" in line for line in others)


# ------------------------------------------------------------------ calls


def functions(platform: str, kind: str) -> dict[str, str]:
    """A library's name of a function -> the bridge's neutral one, of the table."""
    rows = ROW.findall((ROOT / "cbridge" / "symbols.h").read_text())
    assert len(rows) > 60
    found = {}
    for neutral, hip, cuda, library in rows:
        runtime_is_gpu = platform == "hip" and library == "RUNTIME"
        name = hip if platform == "hip" else cuda
        if name and (library == kind or (runtime_is_gpu and kind == "GPU")):
            found[name] = neutral
    found.pop("slurmmesh_emulator_version", None)
    return found


@functools.cache
def declared(libraries: Libraries, header: Header) -> set[str]:
    """The table's functions that a header declares."""
    done = compile_(
        libraries, "-E", "-D__HIP_PLATFORM_AMD__", "-include", header.include, "-xc", "-"
    )
    assert done.returncode == 0, done.stderr
    called = set(re.findall(r"\b(\w+)\s*\(", done.stdout))
    return called & functions(header.platform, header.kind).keys()


def check_calls(libraries: Libraries, include: str, names: dict[str, str], folder: Path) -> str:
    """What the compiler says against the bridge's types of these functions of a header."""
    checks = folder / "checks.h"
    checks.write_text("".join(f"SAME_CALL({n}, sm_{names[n]}_fn)\n" for n in sorted(names)))
    done = compile_(
        libraries,
        *("-xc++", "-std=c++17", "-fsyntax-only", "-fmax-errors=0", "-I", str(folder)),
        *(f"-DHEADER=<{include}>", f'-DCHECKS="{checks}"'),
        str(HERE / "signatures.cc"),
    )
    assert bool(done.stderr) == bool(done.returncode), done.stderr
    return done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("header", [*HEADERS, DRIVER], ids=str)
def test_functions_are_called_as_the_header_says(
    libraries: Find, header: Header, tmp_path: Path
) -> None:
    real = libraries(header.source)
    names = functions(header.platform, header.kind)
    there = sorted(declared(real, header))
    assert there
    assert check_calls(real, header.include, {n: names[n] for n in there}, tmp_path) == ""


@pytest.mark.parametrize(
    ("theirs", "alike"),
    [
        ("int f(void **comm, int ranks, Id id, int rank)", True),
        ("Enum f(unsigned long *comm, unsigned ranks, Id id, Enum rank)", True),
        ("int f(void **comm, int ranks, Id id)", False),
        ("int f(void **comm, int ranks, Id *id, int rank)", False),
        ("int f(void **comm, long ranks, Id id, int rank)", False),
        ("int f(void **comm, float ranks, Id id, int rank)", False),
        ("int f(int *comm, int ranks, Id id, int rank)", False),
        ("void *f(void **comm, int ranks, Id id, int rank)", False),
    ],
)
def test_the_check_of_calls_sees_a_difference(theirs: str, alike: bool, tmp_path: Path) -> None:
    (tmp_path / "header.h").write_text(
        f"struct Id {{ char bytes[128]; }}; enum Enum {{ one }}; extern int other; {theirs};\n"
    )
    wrong = check_calls(Libraries("none", (tmp_path,), {}), "header.h", {"f": "ccl_init"}, tmp_path)
    assert (wrong == "") == alike
    assert alike or "f is called otherwise" in wrong


@pytest.mark.parametrize("header", HEADERS, ids=str)
def test_the_library_has_what_its_header_declares(libraries: Find, header: Header) -> None:
    real = libraries(header.source)
    names = functions(header.platform, header.kind).keys()
    assert declared(real, header) == exported(real.file(header.library)) & names

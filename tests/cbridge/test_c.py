"""The C sources: warnings, clang-tidy, and all of the bridge called from C under sanitizers."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbridge.conftest import ROOT, SOURCES, clean_environment
from tests.emulator import build

STANDARD = ["-std=c17", "-D_GNU_SOURCE"]
WARNINGS = [
    "-Wall",
    "-Wextra",
    "-Wpedantic",
    "-Wconversion",
    "-Wshadow",
    "-Wstrict-prototypes",
    "-Wmissing-prototypes",
]
FILES = sorted(map(str, SOURCES.glob("*.c")))
EXERCISE = str(Path(__file__).with_name("exercise.c"))
LONGEST_FILE = 500

Emulator = Callable[[build.Flavour], Path]


def tool(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed here")
    return found


def check(*command: str, **variables: str) -> None:
    environment = {**clean_environment(), **variables}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_there_are_no_warnings(compiler: str) -> None:
    flags = [*STANDARD, *WARNINGS, "-Werror", "-fsyntax-only", f"-I{SOURCES}"]
    check(tool(compiler), *flags, *FILES, EXERCISE)


@pytest.mark.slow
def test_clang_tidy_has_nothing_to_say() -> None:
    check(tool("clang-tidy"), "--quiet", *FILES, "--", *STANDARD)


def test_no_file_is_too_long() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in SOURCES.glob("*.[ch]")}
    assert {name: n for name, n in lengths.items() if n > LONGEST_FILE} == {}


def declared() -> set[str]:
    header = (SOURCES / "slurmmesh_bridge.h").read_text()
    found = set(re.findall(r"^(?!typedef)\w[\w ]*[ *](sm_\w+)\(", header, re.MULTILINE))
    assert len(found) > 70
    return found


def test_the_header_declares_what_the_sources_define() -> None:
    sources = "".join(Path(file).read_text() for file in FILES)
    assert declared() <= set(re.findall(r"^\w[\w ]*[ *](sm_\w+)\(", sources, re.MULTILINE))


def test_every_function_is_called_by_slurmmesh_or_here() -> None:
    callers = [Path(EXERCISE), SOURCES / "capsule.h", *(ROOT / "slurmmesh" / "gpu").glob("*.py")]
    called = set(re.findall(r"sm_\w+", "".join(path.read_text() for path in callers)))
    assert declared() - called == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flavour", "sanitizers"),
    [
        ("asan", "-fsanitize=address,undefined -fno-sanitize-recover=undefined"),
        ("plain", "-fsanitize=thread"),
    ],
    ids=["address", "thread"],
)
def test_all_of_it_from_c(
    emulator: Emulator, tmp_path: Path, flavour: build.Flavour, sanitizers: str
) -> None:
    libraries = emulator(flavour)
    program = str(tmp_path / "exercise")
    flags = [*STANDARD, "-g", "-O1", "-fno-omit-frame-pointer", *sanitizers.split()]
    link = ["-pthread", "-ldl"]
    check(tool("gcc"), *flags, f"-I{SOURCES}", *FILES, EXERCISE, "-o", program, *link)
    for platform, library in (("rocm", "libamdhip64.so.7"), ("cuda", "libcuda.so.1")):
        check(program, platform, str(libraries / library), LD_LIBRARY_PATH=str(libraries))

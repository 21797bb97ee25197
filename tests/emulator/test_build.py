"""Building the emulator: at once, from the cache, without a compiler; and what it exports."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.emulator import build
from tests.emulator.conftest import ROOT

NAMES = re.compile(r"(hip[A-Z]|cu[A-Z]|cuda[A-Z]|hsa_|nccl[A-Z]|slurmmesh_emulator)\w*")


@pytest.mark.slow
def test_two_processes_build_at_once_and_only_one_of_them_does(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from tests.emulator.build import emulator;"
        "print(emulator('old', Path(sys.argv[1])))"
    )
    command = [sys.executable, "-S", "-c", code, str(tmp_path / "cache")]
    builders = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) for _ in range(2)]
    first, second = (builder.communicate()[0] for builder in builders)
    assert first == second != b""
    left = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert left == [Path(first.decode().strip()).name, "old.lock"]


def test_what_is_built_is_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = build.emulator()
    monkeypatch.setattr(build, "_compile", None)
    assert build.emulator() == folder


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with pytest.raises(build.BuildFailed, match="needs a C compiler"):
        build.emulator(cache=tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["plain.lock"]


def test_a_source_that_does_not_compile_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(build, "FLAGS", [*build.FLAGS, "-DEMU_NAME"])
    with pytest.raises(build.BuildFailed, match="error:"):
        build.emulator(cache=tmp_path)


@pytest.mark.parametrize("flavour", ["plain", "old"])
def test_libraries_export_the_names_of_the_vendors_and_no_others(flavour: build.Flavour) -> None:
    folder = build.emulator(flavour)
    for library in build.libraries(flavour):
        listed = subprocess.run(
            ["nm", "-D", "--defined-only", "--format=posix", str(folder / library.name)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        names = [line.split()[0] for line in listed.splitlines()]
        assert "slurmmesh_emulator" in names
        assert [name for name in names if not NAMES.fullmatch(name)] == []


def test_the_environment_of_a_child(tmp_path: Path) -> None:
    made = build.environment(tmp_path, {"LD_LIBRARY_PATH": "/before"}, devices=4)
    assert made == {
        "LD_LIBRARY_PATH": f"{tmp_path}:/before",
        "SLURMMESH_EMULATOR_DEVICES": "4",
    }
    assert "LD_PRELOAD" not in os.environ

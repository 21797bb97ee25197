"""The variant that is linked against ROCm, built here against the real libraries of Debian 13."""

from __future__ import annotations

import ctypes.util
import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gpu.real.exports import imported
from tests.gpu.real.libraries import ROOT, Libraries, output

Find = Callable[[str], Libraries]

LOAD = """
import importlib.util, json, sys

def has_hip():
    with open("/proc/self/maps") as maps:
        return "libamdhip64" in maps.read()

before = has_hip()
spec = importlib.util.spec_from_file_location("slurmmesh._cffi._bridge_linked", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
after = has_hip()
ffi, lib = module.ffi, module.lib
assert lib.sm_load(lib.SM_PLATFORM_AUTO, ffi.NULL, ffi.NULL, ffi.NULL, ffi.NULL) == 0
paths = [ffi.string(lib.sm_library_path(kind)).decode() for kind in (0, 2)]
searched = lib.sm_searched(ffi.NULL, 0)
print(json.dumps({"before": before, "after": after, "paths": paths, "searched": searched}))
"""


@pytest.fixture(scope="module")
def linked(libraries: Find, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The module, built as ``pip install`` does with SLURMMESH_GPU_PLATFORM=rocm."""
    rocm = libraries("debian-13")
    if shutil.which("cc") is None:
        pytest.skip("there is no cc here to build it with")
    folder = tmp_path_factory.mktemp("linked")
    environment = rocm.environment(SLURMMESH_GPU_PLATFORM="rocm")
    environment["LIBRARY_PATH"] = ":".join(map(str, rocm.folders))
    for name in ("ROCM_PATH", "LD_LIBRARY_PATH"):
        environment.pop(name, None)
    build = ["build_ext", "--build-lib", str(folder / "lib"), "--build-temp", str(folder / "temp")]
    output([sys.executable, str(ROOT / "setup.py"), "--quiet", *build], environment)
    (found,) = (folder / "lib" / "slurmmesh" / "_cffi").glob("_bridge_linked.*.so")
    return found


@pytest.mark.slow
def test_ldd_shows_rocm_and_its_collectives(libraries: Find, linked: Path) -> None:
    rocm = libraries("debian-13")
    # what ldd does, by the loader of Debian 13
    path = ":".join(map(str, rocm.folders))
    command = [str(rocm.loader), "--library-path", path, "--list", str(linked)]
    lines = output(command, rocm.environment()).splitlines()
    needed = {line.split()[0]: line.split()[2] for line in lines if " => " in line}
    for library in ("libamdhip64.so.5", "librccl.so.1"):
        assert Path(needed[library]).resolve() == rocm.file(library)
    assert "not found" not in "\n".join(lines)


@pytest.mark.slow
def test_memory_mapping_is_not_linked_but_looked_up(linked: Path) -> None:
    """Or it would not load where the library has no such function."""
    wanted = {name for name in imported(linked) if name.startswith(("hip", "nccl"))}
    assert wanted == {"hipGetDeviceCount", "ncclGetVersion"}


@pytest.mark.slow
def test_it_brings_the_libraries_that_the_bridge_then_takes(libraries: Find, linked: Path) -> None:
    rocm = libraries("debian-13")
    found = json.loads(rocm.run("-c", LOAD, str(linked)))
    assert (found["before"], found["after"]) == (False, True)
    assert [Path(path).name for path in found["paths"]] == ["libamdhip64.so.5", "librccl.so.1"]
    assert found["searched"] == 1  # the empty text: the first look found each


@pytest.mark.slow
@pytest.mark.skipif(
    ctypes.util.find_library("amdhip64") is not None, reason="this machine has ROCm in its path"
)
def test_without_the_libraries_it_does_not_load(linked: Path) -> None:
    """And the pure variant does: which is why that one is always built."""
    with pytest.raises(AssertionError, match=r"libamdhip64|librccl"):
        output([sys.executable, "-c", LOAD, str(linked)], {})

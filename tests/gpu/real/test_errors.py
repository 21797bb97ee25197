"""What a user of slurmmesh.gpu is told, with real libraries and no GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu.real.libraries import Libraries

Find = Callable[[str], Libraries]

# Runs lines of Python and prints what their last exception says of itself.
TELL = """
import json, sys
from slurmmesh.errors import GpuError
from slurmmesh.gpu import devices
from slurmmesh.gpu.library import load

try:
    exec(sys.argv[1])
except GpuError as error:
    told = {name: getattr(error, name) for name in ("code", "symbol", "library", "text")}
    searched = list(getattr(error, "searched", ()))
    told.update({"is": type(error).__name__, "says": str(error), "searched": searched})
    print(json.dumps(told))
"""


@pytest.fixture(autouse=True)
def _no_gpu_here() -> None:
    if os.path.exists("/dev/kfd") or os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU; these tests say what is told without one")


@pytest.fixture
def told(libraries: Find) -> Callable[..., dict[str, Any]]:
    """``told("debian-13", lines)``: the error that lines of Python end with."""

    def run(name: str, lines: str, **environment: str) -> dict[str, Any]:
        return json.loads(libraries(name).run("-c", TELL, lines, **environment))

    return run


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("debian-13", "libamdhip64.so.5"),
        ("debian-nvidia+pypi", "libcuda.so.1"),
    ],
)
def test_no_device_is_told_with_code_and_library(
    told: Callable[..., dict[str, Any]], name: str, library: str
) -> None:
    error = told(name, "devices()")
    assert (error["is"], error["code"]) == ("GpuUnavailable", 100)
    assert error["library"].endswith(library)
    assert error["symbol"].startswith(("hip", "cu"))
    assert library in error["says"]


@pytest.mark.parametrize("platform", ["auto", "cuda"])
def test_no_library_is_told_with_all_that_was_searched(
    told: Callable[..., dict[str, Any]], platform: str
) -> None:
    """libcudart and libnccl are there: they are not enough."""
    error = told("pypi", "load()", SLURMMESH_GPU_PLATFORM=platform)
    assert error["is"] == "GpuUnavailable"
    assert any("libcuda.so.1" in line for line in error["searched"])
    assert any("libamdhip64" in line for line in error["searched"]) == (platform == "auto")


def test_rocm_asked_for_where_there_is_cuda(told: Callable[..., dict[str, Any]]) -> None:
    error = told("debian-nvidia+pypi", "load()", SLURMMESH_GPU_PLATFORM="rocm")
    assert error["is"] == "GpuUnavailable"
    assert any("libamdhip64.so.6" in line for line in error["searched"])


def test_hip_5_2_is_refused_for_mapping_memory(told: Callable[..., dict[str, Any]]) -> None:
    error = told("debian-12", "load().ask('sm_memory_granularity', 0, 0)")
    assert error["is"] == "GpuUnsupported"
    assert "5.2" in error["says"]
    assert "5.7" in error["says"]


def test_a_missing_function_is_told_with_its_file(told: Callable[..., dict[str, Any]]) -> None:
    error = told("debian-13", "load().ask('sm_ccl_mem_alloc', 0, 4096)")
    assert error["is"] == "GpuUnsupported"
    assert error["symbol"] == "ncclMemAlloc"
    assert error["library"].endswith("librccl.so.1")
    assert "ncclMemAlloc" in error["says"]
    assert "librccl.so.1" in error["says"]


def test_the_platform_is_told_without_touching_a_device(libraries: Find) -> None:
    lines = "from slurmmesh.gpu import platform; found = platform()"
    rocm = libraries("debian-13")
    printed = rocm.run("-c", f"{lines}; print(found.describe(), found.versions())")
    assert printed.startswith("rocm: ")
    assert "librccl.so.1" in printed
    assert "runtime='5.7.31921'" in printed
    assert "EMULATED" not in printed

"""Code that is written with CUDA's names runs on whichever library there is."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from slurmmesh.gpu import compat
from tests.gpu import programs_compat
from tests.gpu.running import Gpu

ROOT = Path(__file__).resolve().parents[2]


def test_memory(gpu: Gpu) -> None:
    gpu.run(programs_compat.memory_as_in_cuda)


def test_devices(gpu: Gpu) -> None:
    gpu.run(programs_compat.devices_as_in_cuda, **({"devices": 2} if gpu.emulated else {}))


def test_errors(gpu: Gpu) -> None:
    name, text = gpu.run(programs_compat.errors_as_in_cuda)
    assert name.startswith("hip" if gpu.platform == "rocm" else "CUDA_ERROR")
    assert text


def test_names(gpu: Gpu) -> None:
    told = gpu.run(programs_compat.names_as_in_cuda)
    missing = {name for name, own in told.items() if not own}
    if gpu.platform == "cuda":
        assert all(own in (name, "") for name, own in told.items())
        return
    assert told["cuMemCreate"] == "hipMemCreate"
    assert told["cuGetErrorName"] == "hipGetErrorName"
    assert told["cuMemcpy"] == "hipMemcpy"
    assert {name for name in missing if "Ctx" not in name} <= {"cuMemGetHandleForAddressRange"}
    assert "cuCtxSetCurrent" in missing


def test_numbers_are_those_of_the_bridge() -> None:
    text = (ROOT / "cbridge" / "layouts.h").read_text()
    numbers = {name: int(value) for name, value in re.findall(r"(SM_\w+) = (\d+)[,\s]", text)}
    assert numbers["SM_ALLOCATION_PINNED"] == compat.CU_MEM_ALLOCATION_TYPE_PINNED
    assert numbers["SM_LOCATION_DEVICE"] == compat.CU_MEM_LOCATION_TYPE_DEVICE
    assert numbers["SM_HANDLE_POSIX_FD"] == compat.CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
    assert numbers["SM_GRANULARITY_MINIMUM"] == compat.CU_MEM_ALLOC_GRANULARITY_MINIMUM
    assert numbers["SM_RANGE_HANDLE_DMABUF"] == compat.CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD
    assert numbers["SM_STREAM_NON_BLOCKING"] == compat.CU_STREAM_NON_BLOCKING
    assert numbers["SM_POINTER_ATTRIBUTE_MEMORY_TYPE"] == compat.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    assert numbers["SM_HIP_COPY_DEFAULT"] == compat._HIP_COPY_DEFAULT
    assert numbers["SM_HIP_7_1"] == compat._HIP_7_1
    assert list(compat._NUMBERS.values()) == [
        (numbers[f"SM_HIP_ATTRIBUTE_{name}"], numbers[f"SM_CUDA_ATTRIBUTE_{name}"])
        for name in ("VMM", "RDMA", "DMABUF")
    ]


def test_an_import_finds_no_library() -> None:
    code = "from slurmmesh.gpu import compat; print(hasattr(compat, 'anything'))"
    environ = {"SLURMMESH_GPU_PLATFORM": "no such thing"}  # told by whoever looks
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True
    )
    assert done.stdout == "False\n", done.stderr

"""What a process is told of its GPU libraries and devices."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.gpu import programs
from tests.gpu.running import Gpu


@pytest.mark.parametrize(
    ("name", "library", "version"),
    [
        ("rocm-7.1", "libamdhip64.so.7", "7.1.25424"),
        ("rocm-6.4", "libamdhip64.so.6", "6.4.43484"),
        ("cuda", "libcuda.so.1", "13.0"),
    ],
)
def test_platform(emulator: Callable[..., Gpu], name: str, library: str, version: str) -> None:
    gpu = emulator(name)
    told = gpu.run(programs.tell_platform)
    assert told["name"] == gpu.platform
    assert told["gpu_library"] == str(gpu.folder / library)
    assert told["runtime"] == told["driver"] == version
    assert told["emulated"]
    assert "EMULATED" in told["describe"]


def test_devices(emulator: Callable[..., Gpu]) -> None:
    for name in ("rocm-7.1", "rocm-6.4", "cuda"):
        told = emulator(name).run(programs.tell_devices, devices=3, memory=1 << 30)
        assert len(told) == 3
        for text, uuid, memory, vmm, _, _ in told:
            assert text.startswith("slurmmesh EMULATOR")
            assert uuid.startswith("GPU-")
            assert (memory, vmm) == (1 << 30, True)


def test_mig_instances(emulator: Callable[..., Gpu]) -> None:
    ((_, uuid, *_),) = emulator("cuda").run(programs.tell_devices, mig=1)
    assert uuid.startswith("MIG-")


@pytest.mark.requires_cuda
def test_a_real_gpu(real_cuda: Gpu) -> None:
    told = real_cuda.run(programs.tell_platform)
    assert (told["name"], told["emulated"]) == ("cuda", False)
    ((name, uuid, memory, vmm, _, _), *_) = real_cuda.run(programs.tell_devices)
    assert "EMULATOR" not in name
    assert uuid.startswith("GPU-")
    assert memory > 1 << 30
    assert vmm


def test_without_a_library_there_is_a_reason(gpu_servers: object) -> None:
    nowhere = Gpu("none", "rocm", None, gpu_servers)
    reason, raised = nowhere.run(programs.tell_none)
    assert "libamdhip64.so.7" in reason
    assert raised == reason


def test_without_a_device_it_is_unavailable(emulator: Callable[..., Gpu]) -> None:
    for name, symbol in (("rocm-7.1", "hipGetDeviceCount"), ("cuda", "cuInit")):
        for said in emulator(name).run(programs.no_device, devices=0):
            assert symbol in said
            assert "no" in said.lower()

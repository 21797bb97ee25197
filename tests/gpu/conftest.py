"""GPU tests without a GPU: programs that run in processes of their own, which find the emulator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from tests.emulator import build
from tests.gpu.running import Gpu, ProgramFailed, Servers

# name -> platform, flavour of the build, settings
EMULATED: dict[str, tuple[str, build.Flavour, dict[str, str | int]]] = {
    "rocm-7.1": ("rocm", "plain", {}),  # descriptors are imported by value
    "rocm-7.0": ("rocm", "plain", {"hip_version": "7.0"}),  # by pointer
    "rocm-6.4": ("rocm", "old", {}),  # by pointer; dma-bufs by HSA
    "cuda": ("cuda", "plain", {}),
}


@pytest.fixture(scope="session")
def gpu_servers(
    tmp_path_factory: pytest.TempPathFactory,
    outlives_modules: Callable[[Path], AbstractContextManager[None]],
) -> Iterator[Servers]:
    folder = tmp_path_factory.mktemp("gpu")
    servers = Servers(folder)
    with outlives_modules(folder):
        try:
            yield servers
        finally:
            servers.stop()


@pytest.fixture(scope="module")
def emulator(gpu_servers: Servers) -> Callable[..., Gpu]:
    """``emulator("rocm-7.1", flavour="asan", devices=4)``: an emulated GPU, built once.

    Without a compiler the test is skipped.
    """

    def make(
        name: str = "rocm-7.1", *, flavour: build.Flavour | None = None, **settings: str | int
    ) -> Gpu:
        platform, usual, own = EMULATED[name]
        try:
            folder = build.emulator(flavour or usual)
        except build.BuildFailed as error:
            if "needs a C compiler" in str(error):
                pytest.skip(str(error))
            raise
        return Gpu(name, platform, folder, gpu_servers, {**own, **settings})

    return make


@pytest.fixture(scope="module")
def in_emulator(emulator: Callable[..., Gpu]) -> Callable[..., Any]:
    """``in_emulator(program, *arguments, devices=4)``: what it answers on emulated ROCm 7.1."""

    def run(program: Callable[..., Any], *arguments: Any, **settings: str | int) -> Any:
        return emulator().run(program, *arguments, **settings)

    return run


@pytest.fixture(scope="module")
def real_cuda(gpu_servers: Servers) -> Gpu:
    """The NVIDIA GPU of this machine; skips where there is none, and says why."""
    gpu = Gpu("real cuda", "cuda", None, gpu_servers)
    try:
        gpu.script("from slurmmesh.gpu import devices; devices()")
    except ProgramFailed as error:
        pytest.skip(f"no NVIDIA GPU: {str(error).strip().splitlines()[-1]}")
    return gpu


@pytest.fixture(
    params=[
        "rocm-7.1",
        pytest.param("rocm-7.0", marks=pytest.mark.slow),
        pytest.param("rocm-6.4", marks=pytest.mark.slow),
        "cuda",
        pytest.param("real", marks=pytest.mark.requires_cuda),
    ]
)
def gpu(request: pytest.FixtureRequest) -> Gpu:
    """Each emulated GPU in turn, and the real one where there is one (marked requires_cuda)."""
    if request.param == "real":
        return request.getfixturevalue("real_cuda")
    return request.getfixturevalue("emulator")(request.param)

"""Device memory on each emulated GPU, and on a real one where there is one."""

from __future__ import annotations

import socket
from collections.abc import Callable

import pytest

from tests.gpu import model, programs, programs_shared
from tests.gpu.programs import UNIT
from tests.gpu.running import Gpu

EVERYWHERE = [
    programs.sizes,
    programs.contents,
    programs.refused_sizes,
    programs.tensors,
    programs.every_type,
    programs.tensors_keep_it,
    programs.capsules,
    programs.after_free,
    programs.forked,
    programs_shared.threads,
    programs_shared.refused_exports,
    programs_shared.exported_again,
    programs_shared.imported_exports,
]


@pytest.mark.parametrize("program", EVERYWHERE, ids=lambda program: program.__name__)
def test_memory(gpu: Gpu, program: Callable[[], None]) -> None:
    gpu.run(program)


def test_whatever_step_fails_nothing_is_left_or_changed(gpu: Gpu) -> None:
    steps = gpu.run(programs_shared.failures)
    made = ["sm_memory_create", "sm_memory_map", "sm_memory_set_access", "sm_owner_add"]
    reserved = ["sm_memory_granularity", "sm_memory_reserve", "sm_owner_new"]
    assert steps == {
        "reserve": [*reserved, *made, "sm_owner_drop"],
        "grow": made,
        "export": ["sm_memory_export_fd"] * 2,
        "import": [*reserved, *["sm_memory_import_fd", *made[1:]] * 2, "sm_owner_drop"],
        "tensor": ["sm_dlpack_new"],
    }


def test_two_processes_see_each_others_writes(gpu: Gpu) -> None:
    left, right = socket.socketpair()
    with left, right:
        first = gpu.start(programs_shared.share, fds=(left.fileno(),))
        second = gpu.start(programs_shared.shared, fds=(right.fileno(),))
    first.finish()
    second.finish()


def test_out_of_memory_names_device_and_size(emulator: Callable[..., Gpu]) -> None:
    for name in ("rocm-7.1", "cuda"):
        reserving, growing = emulator(name).run(programs_shared.out_of_memory, 4, memory=4 * UNIT)
        assert f"{5 * UNIT} bytes could not be added to 0" in reserving
        assert f"{4 * UNIT} bytes could not be added to {UNIT}" in growing
        for said in (reserving, growing):
            assert "ulimit" not in said
            assert said.startswith("device 0 (slurmmesh EMULATOR")
            assert f"has {4 * UNIT} bytes in all: free some, or ask for less" in said


def test_out_of_memory_may_be_out_of_files(emulator: Callable[..., Gpu]) -> None:
    assert "ulimit -n" in emulator("rocm-7.1").run(programs_shared.no_more_files)


@pytest.mark.parametrize("name", ["rocm-7.1", "rocm-6.4", "cuda"])
def test_other_devices(emulator: Callable[..., Gpu], name: str) -> None:
    emulator(name).run(programs_shared.two_devices, devices=2)


def test_partitions_of_a_device(emulator: Callable[..., Gpu]) -> None:
    emulator("rocm-7.1").run(programs_shared.partitions, devices=2, partitions=2)


def test_nics_get_dmabufs(gpu: Gpu) -> None:
    gpu.run(programs_shared.dmabufs)


@pytest.mark.parametrize("name", ["rocm-7.1", "rocm-6.4"])
def test_dmabufs_of_memory_that_others_made(emulator: Callable[..., Gpu], name: str) -> None:
    emulator(name).run(programs_shared.dmabufs_of_others)


def test_without_dmabufs_it_is_unsupported(emulator: Callable[..., Gpu]) -> None:
    said = emulator("cuda").run(programs_shared.no_dmabuf, dmabuf=0)
    assert f"no dma-buf of {UNIT} bytes" in said
    assert "cuMemGetHandleForAddressRange" in said


def test_hip_before_5_7_is_refused(emulator: Callable[..., Gpu]) -> None:
    said = emulator("rocm-6.4").run(programs.too_old, hip_version="5.2")
    assert "HIP 5.2" in said
    assert "take 5.7 or later" in said
    emulator("rocm-6.4").run(programs.sizes, hip_version="5.7")


def test_hip_5_7_has_memory_that_cannot_be_shared(emulator: Callable[..., Gpu]) -> None:
    said = emulator("rocm-6.4").run(programs.cannot_share, hip_version="5.7")
    assert said.count("hipMemExportToShareableHandle") == 2


def test_descriptors_that_hip_keeps_stay_open(emulator: Callable[..., Gpu]) -> None:
    lending = emulator("rocm-7.1", hip_version="7.13")
    for program in (programs_shared.exported_again, programs_shared.dmabufs):
        lending.run(program)
    test_two_processes_see_each_others_writes(lending)


def test_freed_when_the_interpreter_ends(gpu: Gpu) -> None:
    code, _, printed = gpu.start(programs.at_exit).end()
    assert (code, printed) == (0, "dropped\n" * 2)


@pytest.mark.slow
def test_any_order_of_operations(gpu: Gpu) -> None:
    gpu.run(model.model, 60)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["rocm-7.1", "cuda"])
def test_nothing_grows_with_cycles(emulator: Callable[..., Gpu], name: str) -> None:
    # python -m tests.gpu.cycles is the million.
    first, *_, last = emulator(name).run(programs_shared.cycles, 20_000)
    steady = first.keys() - {"cycles", "seconds", "resident_bytes", "maps"}
    assert {key: first[key] for key in steady} == {key: last[key] for key in steady}
    assert last["maps"] - first["maps"] < 20  # those of Python's and the C library's heaps
    assert last["resident_bytes"] - first["resident_bytes"] < 4 << 20


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rocm-7.1", "cuda"])
def test_with_address_sanitizer(emulator: Callable[..., Gpu], name: str) -> None:
    gpu = emulator(name, flavour="asan")
    for program in EVERYWHERE:
        gpu.run(program)
    gpu.run(programs_shared.failures)
    gpu.run(programs_shared.dmabufs)
    gpu.run(programs_shared.cycles, 200)
    gpu.run(model.model, 10)
    test_two_processes_see_each_others_writes(gpu)
    test_freed_when_the_interpreter_ends(gpu)

"""The emulated devices, memory and streams of HIP and CUDA, by ctypes in child processes."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulator import programs_memory as programs
from tests.emulator.build import Flavour, emulator, environment
from tests.emulator.conftest import ROOT, command
from tests.emulator.face import UNIT

InChild = Callable[..., str]
PLATFORMS = pytest.mark.parametrize("platform", ["hip", "cuda"])
FLAVOURS = pytest.mark.parametrize(
    "flavour", ["plain", pytest.param("asan", marks=pytest.mark.slow)]
)


@PLATFORMS
def test_devices_say_that_they_are_emulated(in_child: InChild, platform: str) -> None:
    printed = in_child(programs.devices, platform, devices=3, memory=1 << 30)
    assert printed.splitlines() == [
        f"slurmmesh EMULATOR (no GPU) {i}|e0e0e0e00000000{i}|0000:8{i}:00.0|{1 << 30}"
        for i in range(3)
    ]


@pytest.mark.parametrize(
    ("platform", "masks", "left"),
    [
        ("hip", {"ROCR_VISIBLE_DEVICES": "1,3", "HIP_VISIBLE_DEVICES": "1"}, [3]),
        ("hip", {"ROCR_VISIBLE_DEVICES": "GPU-e0e0e0e000000002,0"}, [2, 0]),
        ("hip", {"CUDA_VISIBLE_DEVICES": "2,9,1"}, [2]),
        ("cuda", {"CUDA_VISIBLE_DEVICES": "3,0", "HIP_VISIBLE_DEVICES": "1"}, [3, 0]),
    ],
)
def test_masks_of_the_vendors_count(
    in_child: InChild,
    monkeypatch: pytest.MonkeyPatch,
    platform: str,
    masks: dict[str, str],
    left: list[int],
) -> None:
    for name in ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    for name, value in masks.items():
        monkeypatch.setenv(name, value)
    names = [
        line.split("|")[0] for line in in_child(programs.devices, platform, devices=4).splitlines()
    ]
    assert names == [f"slurmmesh EMULATOR (no GPU) {number}" for number in left]


def test_versions_are_those_asked_for(in_child: InChild) -> None:
    printed = in_child(programs.versions, hip_version="6.4.5", cuda_version="12.4")
    assert printed.split() == ["60400005", "12040"]


def test_every_library_is_marked(in_child: InChild) -> None:
    names = "amdhip64.so.7", "hsa-runtime64.so.1", "rccl.so.1"
    in_child(programs.markers, *names, "cuda.so.1", "cudart.so.13", "nccl.so.2")


def test_without_a_device_each_platform_says_so(in_child: InChild) -> None:
    in_child(programs.no_device, devices=0)


@PLATFORMS
@FLAVOURS
def test_the_life_of_memory_and_its_limits(
    in_child: InChild, platform: str, flavour: Flavour
) -> None:
    in_child(programs.life, platform, flavour=flavour)


def test_the_life_of_memory_on_an_old_hip(in_child: InChild) -> None:
    in_child(programs.life, "hip", "libamdhip64.so.6", flavour="old")


@PLATFORMS
@FLAVOURS
def test_copies_fills_and_kinds_of_pointers(
    in_child: InChild, platform: str, flavour: Flavour
) -> None:
    in_child(programs.copies, platform, flavour=flavour)


@PLATFORMS
def test_a_device_runs_out_of_memory(in_child: InChild, platform: str) -> None:
    in_child(programs.limit, platform, devices=2, memory=4 * UNIT)


@pytest.mark.parametrize(("version", "keeps"), [("7.0", True), ("6.4", False)])
def test_the_last_error_stays_from_hip_7_on(in_child: InChild, version: str, keeps: bool) -> None:
    in_child(programs.last_error, keeps, hip_version=version)


def test_a_forked_child_is_not_initialized(in_child: InChild) -> None:
    in_child(programs.forked)


@pytest.mark.parametrize(
    ("platform", "version", "by_pointer"),
    [("hip", "7.1", False), ("hip", "7.0", True), ("hip", "6.4", True), ("cuda", "7.1", False)],
)
def test_two_processes_share_memory(
    tmp_path: Path, platform: str, version: str, by_pointer: bool
) -> None:
    path = os.path.relpath(tmp_path / "s", ROOT)
    env = environment(emulator(), hip_version=version)
    with contextlib.ExitStack() as stack:
        sharer = stack.enter_context(
            subprocess.Popen(
                command(programs.sharer, platform, path),
                cwd=ROOT,
                env=env,
                stdout=subprocess.PIPE,
                text=True,
            )
        )
        stack.callback(sharer.kill)
        assert sharer.stdout is not None
        assert sharer.stdout.readline() == "listening\n"
        sharee = command(programs.sharee, platform, path, by_pointer)
        subprocess.run(sharee, cwd=ROOT, env=env, check=True, timeout=60)
        assert sharer.wait(60) == 0


@pytest.mark.parametrize(("version", "by_pointer"), [("7.1", False), ("7.0", True)])
def test_what_cannot_be_imported_is_refused(
    in_child: InChild, version: str, by_pointer: bool
) -> None:
    in_child(programs.imports, by_pointer, hip_version=version)


@pytest.mark.parametrize(("version", "strict"), [("7.2", True), ("7.3", False)])
def test_access_to_an_extent_alone(in_child: InChild, version: str, strict: bool) -> None:
    in_child(programs.extents, strict, hip_version=version)


@pytest.mark.parametrize(
    ("flavour", "library", "has_call"),
    [("plain", "libamdhip64.so.7", True), ("old", "libamdhip64.so.6", False)],
)
def test_descriptors_of_ranges(
    in_child: InChild, flavour: Flavour, library: str, has_call: bool
) -> None:
    in_child(programs.dmabufs, library, has_call, flavour=flavour)


@FLAVOURS
def test_streams_do_their_work_later_and_in_order(in_child: InChild, flavour: Flavour) -> None:
    in_child(programs.streams, flavour=flavour)


def test_cuda_wants_a_context(in_child: InChild) -> None:
    in_child(programs.contexts, devices=2)


def test_nothing_grows(in_child: InChild) -> None:
    in_child(programs.cycles, 2000)

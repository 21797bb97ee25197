"""The bridge on real libraries, on a machine without a GPU: what it finds, and what they answer.

Each set of libraries is probed once, in a process of its own (``probe.py``).
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.real.exports import exported
from tests.gpu.real.libraries import Libraries, output

Find = Callable[[str], Libraries]
Probe = Callable[[str, str], dict[str, Any]]

ROCM, CUDA = 1, 2
BRIDGE, GPU = 0, 1
NO_LIBRARY, NO_SYMBOL, TOO_OLD = -1, -2, -3
NO_DEVICE, INVALID_DEVICE = 100, 101

HIPS = ["debian-12", "debian-13", "debian-unstable"]
NVIDIA = "debian-nvidia+pypi"
ALL = [*HIPS, NVIDIA]


@pytest.fixture(scope="module", autouse=True)
def _no_gpu_here() -> None:
    for device in ("/dev/kfd", "/dev/nvidiactl"):
        if os.path.exists(device):
            pytest.skip(f"this machine has {device}; these tests say what there is without a GPU")


@pytest.fixture(scope="module")
def probe(libraries: Find) -> Probe:
    """``probe("debian-13", "rocm")``: what the bridge answers with these libraries."""
    done: dict[tuple[str, str], dict[str, Any]] = {}

    def get(name: str, platform: str) -> dict[str, Any]:
        if (name, platform) not in done:
            printed = libraries(name).run("-m", "tests.gpu.real.probe", platform)
            done[name, platform] = json.loads(printed)
        return done[name, platform]

    return get


def in_header(libraries: Libraries, header: str, *names: str) -> list[int]:
    """Numbers that a header defines."""
    text = libraries.file(header).read_text()
    return [int(re.findall(rf"#define\s+{name}\s+(\d+)", text)[0]) for name in names]


# ------------------------------------------------------------------ found


@pytest.mark.parametrize("name", ALL)
def test_of_either_platform_the_one_that_is_there_is_found(
    libraries: Find, probe: Probe, name: str
) -> None:
    found = probe(name, "auto")
    assert found["load"]["code"] == 0
    assert found["platform"] == (CUDA if name == NVIDIA else ROCM)
    assert found["emulator"] == ""
    roots = tuple(str(root) for root in libraries(name).roots)
    paths = [path for path in found["paths"] if path]
    assert len(paths) >= 3
    assert all(path.startswith(roots) for path in paths)


@pytest.mark.parametrize("name", HIPS)
def test_what_was_tried_before_is_told(probe: Probe, name: str) -> None:
    found = probe(name, "auto")
    soname = Path(found["paths"][0]).name
    tried = [line.partition(":")[0] for line in found["searched"]]
    assert soname not in tried
    if soname != "libamdhip64.so.7":
        assert "libamdhip64.so.7" in tried


@pytest.mark.parametrize("platform", ["cuda", "auto"])
def test_the_cuda_runtime_alone_is_no_cuda(probe: Probe, platform: str) -> None:
    """A torch for CUDA brings libcudart and libnccl to machines without a driver."""
    found = probe("pypi", platform)
    assert found["load"]["code"] == NO_LIBRARY
    assert any(line.startswith("libcuda.so.1:") for line in found["searched"])


def test_debian_12_loads_on_this_machines_own_loader(libraries: Find) -> None:
    real = libraries("debian-12")
    needed = tuple(map(int, re.findall(r"\d+", real.packages["libc6"])[:2]))
    here = tuple(map(int, re.findall(r"\d+", os.confstr("CS_GNU_LIBC_VERSION") or "0.0")))
    if here < needed:
        pytest.skip(f"the C library here is {here}, older than that of Debian 12, {needed}")
    others = [str(folder) for folder in real.folders if not (folder / "libc.so.6").exists()]
    environment = real.environment(LD_LIBRARY_PATH=":".join(others))
    assert "not found" not in output(["ldd", str(real.file("libamdhip64.so.*"))], environment)
    printed = output([sys.executable, "-m", "tests.gpu.real.probe", "rocm"], environment)
    found = json.loads(printed)
    assert found["answers"]["runtime_version"]["value"] // 100_000 == 502
    assert found["answers"]["device_count"]["code"] == NO_DEVICE


def test_libcuda_makes_no_device_files(probe: Probe) -> None:
    """What run by root it does, and then every program takes this for an NVIDIA machine."""
    assert probe(NVIDIA, "cuda")["answers"]["init"]["code"] == NO_DEVICE
    assert not list(Path("/dev").glob("nvidia*"))


# ------------------------------------------------------------------ the table


@pytest.mark.parametrize("name", ALL)
def test_the_table_tells_what_each_library_has(probe: Probe, name: str) -> None:
    found = probe(name, "auto")
    column = "cuda" if name == NVIDIA else "hip"
    there = [exported(Path(path)) if path else set() for path in found["paths"]]
    wrong = [
        row for row in found["symbols"] if row["present"] != (row[column] in there[row["library"]])
    ]
    assert wrong == []
    assert sum(row["present"] for row in found["symbols"]) > 30


@pytest.mark.parametrize("name", HIPS)
def test_dma_bufs_of_hip_below_7_come_from_hsa(probe: Probe, name: str) -> None:
    found = probe(name, "auto")
    has = {row["neutral"]: row["present"] for row in found["symbols"]}
    version = found["answers"]["runtime_version"]["value"]
    assert has["memory_range_handle"] == (version >= 70_000_000)
    assert has["hsa_export_dmabuf"] == (version >= 50_700_000)


# ------------------------------------------------------------------ versions


@pytest.mark.parametrize("name", HIPS)
def test_the_version_is_that_of_hips_header(libraries: Find, probe: Probe, name: str) -> None:
    parts = [f"HIP_VERSION_{part}" for part in ("MAJOR", "MINOR", "PATCH")]
    major, minor, patch = in_header(libraries(name), "hip/hip_version.h", *parts)
    answers = probe(name, "auto")["answers"]
    assert answers["runtime_version"]["value"] == major * 10_000_000 + minor * 100_000 + patch


def test_the_version_is_that_of_cudas_header(libraries: Find, probe: Probe) -> None:
    answers = probe(NVIDIA, "auto")["answers"]
    (version,) = in_header(libraries(NVIDIA), "cuda_runtime_api.h", "CUDART_VERSION")
    assert answers["runtime_version"]["value"] == version
    assert answers["driver_version"]["value"] >= 12_000


@pytest.mark.parametrize(("name", "header"), [("debian-13", "rccl/rccl.h"), (NVIDIA, "nccl.h")])
def test_the_version_is_that_of_the_collectives_header(
    libraries: Find, probe: Probe, name: str, header: str
) -> None:
    (version,) = in_header(libraries(name), header, "NCCL_VERSION_CODE")
    assert probe(name, "auto")["answers"]["ccl_version"]["value"] == version


# ------------------------------------------------------------------ answers without a device


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("question", ["init", "device_count", "device_name", "device_memory"])
def test_without_a_device_the_library_says_so(probe: Probe, name: str, question: str) -> None:
    found = probe(name, "auto")
    answer = found["answers"][question]
    assert answer["code"] in (NO_DEVICE, INVALID_DEVICE)
    assert answer["told"] == answer["code"]
    assert answer["origin"] == GPU
    assert answer["symbol"].startswith(("hip", "cu"))
    assert answer["library"] == found["paths"][0]
    assert re.search("no.?device|invalid.?device", answer["text"], re.IGNORECASE)


@pytest.mark.parametrize("name", ALL)
def test_the_count_of_devices_fails_for_lack_of_one(probe: Probe, name: str) -> None:
    assert probe(name, "auto")["answers"]["device_count"]["code"] == NO_DEVICE


MAPPING = ["memory_granularity", "memory_create", "memory_reserve"]


@pytest.mark.parametrize("question", MAPPING)
def test_hip_5_2_is_too_old_to_map_memory(probe: Probe, question: str) -> None:
    found = probe("debian-12", "auto")
    answer = found["answers"][question]
    assert (answer["code"], answer["origin"]) == (TOO_OLD, BRIDGE)
    assert answer["symbol"].startswith("hipMem")
    assert answer["library"] == found["paths"][0]
    assert "5.2" in answer["text"]


@pytest.mark.parametrize("name", ALL[1:])
@pytest.mark.parametrize("question", MAPPING)
def test_later_ones_are_asked_and_have_no_device(probe: Probe, name: str, question: str) -> None:
    assert probe(name, "auto")["answers"][question]["code"] == NO_DEVICE


@pytest.mark.parametrize("name", ["debian-13", NVIDIA])
def test_unique_ids_are_made_without_a_device(probe: Probe, name: str) -> None:
    first, second = (bytes.fromhex(made["value"]) for made in probe(name, "auto")["unique_ids"])
    assert len(first) == len(second) == 128
    assert first != second
    assert any(first)


# ------------------------------------------------------------------ functions that are missing


@pytest.mark.parametrize(
    ("question", "symbol"),
    [("ccl_init_at_once", "ncclCommInitRankConfig"), ("ccl_mem_alloc", "ncclMemAlloc")],
)
def test_what_rccl_2_13_lacks_is_named(probe: Probe, question: str, symbol: str) -> None:
    found = probe("debian-13", "auto")
    answer = found["answers"][question]
    assert (answer["code"], answer["origin"]) == (NO_SYMBOL, BRIDGE)
    assert answer["symbol"] == symbol
    assert answer["library"] == found["paths"][2]


@pytest.mark.parametrize("question", ["ccl_version", "ccl_init"])
def test_without_a_library_of_collectives_that_is_said(probe: Probe, question: str) -> None:
    answer = probe("debian-12", "auto")["answers"][question]
    assert (answer["code"], answer["library"]) == (NO_SYMBOL, "")
    assert answer["symbol"].startswith("nccl")
    assert "not there" in answer["text"]

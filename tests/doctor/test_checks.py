"""What is made of what a node has: every finding has its state and says what to do. Pure."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.config import NODE_FOLDERS
from slurmmesh.doctor import cluster, collectives, gpus, kernel
from slurmmesh.doctor.checks import STATES, Check, as_data, as_text, worst
from slurmmesh.doctor.collectives import Node
from slurmmesh.doctor.probe import Told
from slurmmesh.hosts.masks import CUDA, HIP, ROCR, Machine
from slurmmesh.slurm.addresses import Interface

AMD = Machine(rocm=True, gpus=8)
NVIDIA = Machine(cuda=True, gpus=8)
NOTHING = Machine()

FOUND: dict[str, Any] = {
    "built": ["_bridge", "_bridge_linked"],
    "platform": {
        "name": "rocm",
        "reason": "",
        "gpu_library": "/opt/rocm/lib/libamdhip64.so.7",
        "runtime_library": "",
        "ccl_library": "/opt/rocm/lib/librccl.so.1",
        "hsa_library": "/opt/rocm/lib/libhsa-runtime64.so.1",
        "emulator": "",
    },
    "linked": True,
    "missing": [],
    "symbols": 70,
    "versions": {"runtime": "7.1.2", "driver": "7.1.2", "ccl": "2.27.7"},
    "devices": [
        {
            "index": 0,
            "name": "AMD Instinct MI300X",
            "uuid": "GPU-0a",
            "pci_address": "0000:0c:00.0",
            "memory_bytes": 192 << 30,
            "vmm": True,
            "rdma": None,
            "dmabuf": False,
        }
    ],
}


def found(checks: Any) -> dict[str, Check]:
    return {check.name: check for check in checks}


# ------------------------------------------------------------------ the report

texts = st.text(max_size=300)
any_check = st.builds(Check, texts, texts, st.sampled_from(STATES), texts, texts)


@given(st.lists(any_check, max_size=6))
def test_any_finding_is_shown(some: list[Check]) -> None:
    text = as_text("node1", some)
    assert text.endswith("\n")
    data = as_data("node1", "1.0", False, some)
    assert len(data["checks"]) == len(some)
    assert data["worst"] == worst(some)
    assert all(STATES.index(each.state) <= STATES.index(worst(some)) for each in some)


def test_a_report_reads_well() -> None:
    some = [
        Check("GPU", "devices", "error", "none\nhipInit: no", "look at dmesg"),
        Check("Limits", "a name that is quite long", "ok", "fine"),
    ]
    assert as_text("node1", some) == (
        "node1\n\nGPU\n"
        "  error    devices                none\n"
        "                                  hipInit: no\n"
        "                                  → look at dmesg\n"
        "\nLimits\n"
        "  ok       a name that is quite long\n"
        "                                  fine\n"
        "\n1 error\n"
    )


# ------------------------------------------------------------------ GPUs


def test_all_is_well() -> None:
    checks = found(gpus.checks(Told(FOUND), AMD, True, ("rocm", "7.1.2")))
    assert {check.state for check in checks.values()} == {"ok"}
    assert "linked" in checks["platform"].text
    assert checks["gpu"].text == "/opt/rocm/lib/libamdhip64.so.7 7.1.2"
    assert "MI300X, 192 GiB, 0000:0c:00.0, GPU-0a" in checks["device 0"].text
    assert "vmm yes, rdma not told, dmabuf no" in checks["device 0"].text


@pytest.mark.parametrize(("machine", "state"), [(AMD, "error"), (NOTHING, "note")])
def test_what_is_missing_is_an_error_where_a_gpu_is(machine: Machine, state: str) -> None:
    wanted = gpus.is_wanted({}, machine)
    none = {"built": ["_bridge"], "unavailable": "no library", "searched": ["libx: no such file"]}
    check = found(gpus.checks(Told(none), machine, wanted, None))["libraries"]
    assert (check.state, check.text) == (state, "no library\nlibx: no such file")
    unbuilt = {"built": [], "unavailable": "no compiler", "searched": []}
    assert found(gpus.checks(Told(unbuilt), machine, wanted, None))["bridge"].state == state
    silent = {**FOUND, "no_devices": "hipGetDeviceCount: no device"}
    del silent["devices"]
    assert found(gpus.checks(Told(silent), machine, wanted, None))["devices"].state == state


def test_what_a_crash_left_untold() -> None:
    for values in ({}, {"built": ["_bridge"]}, {**FOUND, "versions": {}}):
        checks = list(gpus.checks(Told(values, "it was killed by signal 6"), AMD, True, None))
        assert [c.text for c in checks if c.state == "error"] == ["it was killed by signal 6"]


def test_a_torch_for_other_gpus() -> None:
    for torch, wanted, state in (
        (("cuda", "13.0"), True, "warning"),
        (("", ""), True, "warning"),
        (("", ""), False, "note"),
    ):
        assert found(gpus.checks(Told(FOUND), AMD, wanted, torch))["torch"].state == state


@pytest.mark.parametrize(
    ("missing", "state"),
    [([], "ok"), (["ccl_shrink"], "note"), (["memory_create", "ccl_shrink"], "warning")],
)
def test_missing_functions(missing: list[str], state: str) -> None:
    check = found(gpus.checks(Told({**FOUND, "missing": missing}), AMD, True, None))["functions"]
    assert check.state == state
    assert all(name in check.text for name in missing)


def test_hip_that_is_too_old() -> None:
    old = {**FOUND, "versions": {"runtime": "5.2.1", "driver": "5.2.1", "ccl": ""}}
    assert found(gpus.checks(Told(old), AMD, True, None))["version"].state == "warning"


@pytest.mark.parametrize(
    ("environ", "machine", "name", "state"),
    [
        ({}, AMD, "masks", "ok"),
        ({ROCR: "0,1"}, AMD, ROCR, "ok"),
        ({ROCR: "0,1", HIP: "1"}, AMD, "together", "warning"),
        ({ROCR: "4,5", HIP: "4,5"}, AMD, "together", "warning"),
        ({ROCR: "4,5", HIP: "4"}, AMD, "together", "error"),
        ({CUDA: ""}, NVIDIA, "together", "note"),
    ],
)
def test_masks(environ: dict[str, str], machine: Machine, name: str, state: str) -> None:
    assert found(gpus.mask_checks(environ, machine))[name].state == state


def test_masks_that_are_not_read_are_no_conflict() -> None:
    assert "together" not in found(gpus.mask_checks({ROCR: "0", CUDA: "0"}, NVIDIA))


# ------------------------------------------------------------------ the libraries' environment

SLINGSHOT = ("eth0", "hsn0", "hsn1")
MI300 = {
    "NCCL_SOCKET_IFNAME": "hsn0",
    "FI_MR_CACHE_MONITOR": "userfaultfd",
    "HSA_NO_SCRATCH_RECLAIM": "1",
    "SLINGSHOT_VNIS": "1024",
    NODE_FOLDERS: "MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR",
}


def test_what_the_template_sets_is_fine() -> None:
    checks = list(collectives.checks(MI300, Node(True, "7.1.0", SLINGSHOT)))
    assert {check.state for check in checks} == {"ok"}
    assert "NCCL_SOCKET_IFNAME=hsn0" in [check.text for check in checks]


def test_nothing_is_advised_where_there_is_no_such_thing() -> None:
    assert {c.state for c in collectives.checks({}, Node(False, "", ("eth0",)))} == {"ok"}


@pytest.mark.parametrize(
    ("change", "name", "state"),
    [
        ({"NCCL_SOCKET_IFNAME": ""}, "NCCL_SOCKET_IFNAME", "warning"),
        ({"NCCL_SOCKET_IFNAME": "eth0"}, "NCCL_SOCKET_IFNAME", "warning"),
        ({"NCCL_SOCKET_IFNAME": "ib0"}, "NCCL_SOCKET_IFNAME", "error"),
        ({"NCCL_SOCKET_IFNAME": "=hsn"}, "NCCL_SOCKET_IFNAME", "error"),
        ({"FI_MR_CACHE_MONITOR": "memhooks"}, "FI_MR_CACHE_MONITOR", "warning"),
        ({"HSA_NO_SCRATCH_RECLAIM": "0"}, "HSA_NO_SCRATCH_RECLAIM", "note"),
        ({"NCCL_NET_GDR_LEVEL": "PHB"}, "NCCL_NET_GDR_LEVEL", "warning"),
        ({NODE_FOLDERS: ""}, "MIOpen", "warning"),
        ({"MIOPEN_USER_DB_PATH": "/tmp/miopen"}, "MIOpen", "warning"),
        ({"SLINGSHOT_VNIS": "", "SLURM_JOB_ID": "7"}, "--network", "warning"),
    ],
)
def test_what_goes_wrong(change: dict[str, str], name: str, state: str) -> None:
    checks = found(collectives.checks({**MI300, **change}, Node(True, "7.1.0", SLINGSHOT)))
    assert checks[name].state == state
    assert checks[name].advice


def test_what_holds_for_some_versions_only() -> None:
    old = Node(True, "6.2.0", ())
    phb = {"NCCL_NET_GDR_LEVEL": "PHB"}
    assert "NCCL_NET_GDR_LEVEL" not in found(collectives.checks(phb, old))
    assert found(collectives.checks({}, old))["HSA_NO_SCRATCH_RECLAIM"].state == "warning"
    unknown = Node(True, "", ())
    assert "NCCL_NET_GDR_LEVEL" in found(collectives.checks(phb, unknown))


# ------------------------------------------------------------------ kernel, limits, cluster


def test_what_only_root_can_set(tmp_path: Path) -> None:
    for path, text in (
        ("proc/sys/kernel/numa_balancing", "1\n"),
        ("proc/cmdline", "root=/dev/sda1 iommu=pt pci=bfsort,realloc=off\n"),
        ("dev/kfd", ""),
    ):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    checks = found(kernel.kernel_checks(AMD, tmp_path))
    assert checks["NUMA balancing"].state == "warning"
    assert "administrators" in checks["NUMA balancing"].advice
    assert checks["iommu=pt"].state == checks["pci=realloc=off"].state == "ok"
    (tmp_path / "proc/cmdline").write_text("quiet")
    checks = found(kernel.kernel_checks(AMD, tmp_path))
    assert checks["iommu=pt"].state == checks["pci=realloc=off"].state == "warning"
    assert found(kernel.kernel_checks(NOTHING, tmp_path))["NUMA balancing"].state == "note"
    (tmp_path / "dev/kfd").unlink()
    assert found(kernel.kernel_checks(AMD, tmp_path))["/dev/kfd"].state == "error"
    (tmp_path / "proc/sys/kernel/numa_balancing").write_text("0\n")
    assert found(kernel.kernel_checks(AMD, tmp_path))["NUMA balancing"].state == "ok"


def test_limits(tmp_path: Path) -> None:
    assert found(kernel.limit_checks(NOTHING))["/dev/shm"].text
    without = found(kernel.limit_checks(NOTHING, tmp_path))
    assert without["/dev/shm"].state == "warning"
    assert set(without) == {"open files", "locked memory", "/dev/shm"}


def test_a_network_that_nobody_reaches() -> None:
    lo = Interface("lo", "127.0.0.1", 8)
    assert found(cluster.network_checks([lo], ""))["network"].state == "warning"
    two = found(cluster.network_checks([lo, Interface("ib0", "10.0.0.1", 16)], "ib"))
    assert two["ib0"].text == "10.0.0.1/16"
    assert "ib" in two["interface"].text


def test_the_folder_of_the_jobs(tmp_path: Path) -> None:
    assert found(cluster.folder_checks(tmp_path, 60))["job folders"].state == "ok"
    later = found(cluster.folder_checks(tmp_path / "a" / "b", 60))["job folders"]
    assert (later.state, "made" in later.text) == ("ok", True)
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").touch()
    for wrong in (tmp_path / "file", tmp_path / "file" / "below"):
        assert found(cluster.folder_checks(wrong, 60))["job folders"].state == "error"

"""Which GPUs a process sees by its masks, and that each proc gets its share by exactly one."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from slurmmesh.hosts.machine import machine
from slurmmesh.hosts.masks import CUDA, HIP, ORDINAL, ROCR, VARIABLES, Machine, Visible, visible

AMD = Machine(rocm=True)
NVIDIA = Machine(cuda=True)


def amd(gpus: int) -> Machine:
    return Machine(rocm=True, gpus=gpus)


# ------------------------------------------------------------------ what the libraries do


def listed(text: str, devices: list[str]) -> list[str]:
    """What is left of ``devices`` (their uuids) by the value of a mask."""
    found: list[str] = []
    for entry in text.split(","):
        if entry in devices:
            found.append(entry)
        elif entry.isdecimal() and int(entry) < len(devices):
            found.append(devices[int(entry)])
        else:
            break
    return found


def sees(environ: dict[str, str], on: Machine, devices: list[str]) -> list[str]:
    if on.cuda:
        return listed(environ[CUDA], devices) if CUDA in environ else devices
    if ROCR in environ:
        devices = listed(environ[ROCR], devices)
    for name in (HIP, CUDA, ORDINAL):
        if name in environ:
            return listed(environ[name], devices)
    return devices


GPUS = [f"GPU-{number}" for number in range(6)]


def resolved(entry: str) -> str:
    """The uuid of a GPU that an outermost mask names."""
    return GPUS[int(entry)] if entry.isdecimal() and int(entry) < len(GPUS) else entry


entries = st.lists(
    st.one_of(st.integers(0, 7).map(str), st.sampled_from(GPUS), st.sampled_from(["-1", "x", ""])),
    max_size=5,
    unique=True,
).map(",".join)
environments = st.dictionaries(st.sampled_from(VARIABLES), entries)


@pytest.mark.slow
@given(environments, st.sampled_from([amd(6), Machine(cuda=True, gpus=6)]), st.integers(1, 3))
def test_a_share_is_a_part_of_what_the_host_sees(
    environ: dict[str, str], on: Machine, each: int
) -> None:
    # No list names a GPU by its index and by its uuid.
    named = [[resolved(entry) for entry in text.split(",")] for text in environ.values()]
    before = sees(environ, on, GPUS)
    assume(all(len(set(names)) == len(names) for names in (*named, before)))
    seen = visible(environ, on)
    if seen.conflict:
        assert seen.devices == ()
        return
    if seen.note:  # it is read as it was meant, not as the libraries would
        before = list(map(resolved, seen.devices))
    assert list(map(resolved, seen.devices)) == before
    procs = len(before) // each
    mask = seen.shares(procs, each)
    for first in range(procs + 1):  # of several meshes on one host
        assert seen.shares(procs - first, each, first * each).values == mask.values[first:]
    for rank in range(procs):
        child = {**environ, "KEPT": "1"}
        mask.apply(child, rank)
        assert sum(name in child for name in VARIABLES) == 1
        assert child["KEPT"] == "1"
        assert sees(child, on, GPUS) == before[rank * each : (rank + 1) * each]
        # A mask of a mask.
        again = visible(child, on)
        assert not again.conflict
        assert again.devices == seen.devices[rank * each : (rank + 1) * each]


@given(st.dictionaries(st.sampled_from(VARIABLES), st.text()), st.integers(0, 9))
def test_any_text_is_read(environ: dict[str, str], gpus: int) -> None:
    for on in (amd(gpus), Machine(cuda=True, gpus=gpus), Machine()):
        seen = visible(environ, on)
        assert not (seen.conflict and seen.devices)
        assert seen.why_not(0) == ""


# ------------------------------------------------------------------ by hand


@pytest.mark.parametrize(
    ("environ", "on", "variable", "devices"),
    [
        ({}, Machine(), "", ""),
        ({}, amd(3), ROCR, "0,1,2"),
        ({}, Machine(cuda=True, gpus=2), CUDA, "0,1"),
        ({ROCR: "4,5"}, AMD, ROCR, "4,5"),
        ({HIP: "4,5"}, AMD, HIP, "4,5"),
        ({CUDA: "4,5"}, AMD, CUDA, "4,5"),  # HIP reads it too
        ({ORDINAL: "4,5"}, AMD, HIP, "4,5"),
        ({CUDA: "4, 05"}, NVIDIA, CUDA, "4,5"),
        ({CUDA: "GPU-ab,MIG-cd"}, NVIDIA, CUDA, "GPU-ab,MIG-cd"),
        ({CUDA: "0,1,-1,2"}, NVIDIA, CUDA, "0,1"),
        ({CUDA: "NoDevFiles"}, NVIDIA, CUDA, ""),
        ({ROCR: ""}, amd(8), ROCR, ""),
        ({ROCR: "GPU-a,GPU-b", HIP: "1"}, AMD, ROCR, "GPU-b"),
        ({ROCR: "GPU-a,GPU-b", HIP: "GPU-b"}, AMD, ROCR, "GPU-b"),
        ({ROCR: "4,5,6,7", HIP: "2,0"}, amd(8), ROCR, "6,4"),
        ({ROCR: "4,5,6,7", CUDA: "0,1,2,3"}, amd(8), ROCR, "4,5,6,7"),
        ({HIP: "1", CUDA: "0,1"}, AMD, HIP, "1"),
        # Of another maker: not read there.
        ({ROCR: "0", HIP: "0", CUDA: "2,3"}, NVIDIA, CUDA, "2,3"),
        ({ROCR: "0"}, Machine(cuda=True, gpus=2), CUDA, "0,1"),
        # No driver: a lab's.
        ({ROCR: "2,3"}, Machine(), ROCR, "2,3"),
        ({CUDA: "2,3"}, Machine(), CUDA, "2,3"),
    ],
)
def test_what_is_seen(environ: dict[str, str], on: Machine, variable: str, devices: str) -> None:
    words = tuple(filter(None, devices.split(",")))
    assert visible(environ, on) == Visible(variable, words)


def test_indexes_from_outside_of_a_cgroup_are_counted_anew() -> None:
    # Slurm gave GPUs 4 to 7; its cgroup shows those four, as 0 to 3.
    seen = visible({ROCR: "4,5,6,7"}, amd(4))
    assert (seen.variable, seen.devices) == (ROCR, ("0", "1", "2", "3"))
    assert "cgroup" in seen.note
    assert visible({ROCR: "0,1,2,3"}, amd(4)).note == ""  # Slurm has counted anew itself


@pytest.mark.parametrize("gpus", [0, 2, 8])
def test_the_same_gpus_named_twice_are_taken_once(gpus: int) -> None:
    # As Slurm does without Flags=amd_gpu_env in gres.conf.
    seen = visible({ROCR: "4,5", CUDA: "4,5", ORDINAL: "4,5"}, amd(gpus))
    assert seen.devices == (("0", "1") if gpus == 2 else ("4", "5"))
    assert "twice" in seen.note


@pytest.mark.parametrize(
    ("environ", "on", "said"),
    [
        ({ROCR: "4,5,6,7", HIP: "4"}, amd(8), "no number 4"),
        ({ROCR: "GPU-a", HIP: "GPU-b"}, AMD, "whether GPU-b is among the first"),
        ({ROCR: "0,1", HIP: "GPU-b"}, AMD, "whether GPU-b is among the first"),
        ({ROCR: "0,1,1"}, AMD, "names 1 twice"),
        ({ROCR: "GPU-a,GPU-b", HIP: "0,GPU-a"}, AMD, "together name a GPU twice"),
        ({ROCR: "4,5"}, amd(4), "names GPU 4, but this host shows 4"),
        ({CUDA: "0,0"}, NVIDIA, "names 0 twice"),
    ],
)
def test_masks_that_contradict_each_other(environ: dict[str, str], on: Machine, said: str) -> None:
    seen = visible(environ, on)
    assert said in seen.conflict
    assert all(f"{name}=" in seen.conflict for name in environ)
    assert seen.why_not(1) == seen.conflict
    with pytest.raises(ValueError, match=said):
        seen.shares(1, 1)


def test_too_many_are_refused_with_what_there_is() -> None:
    seen = visible({ROCR: "2,3"}, AMD)
    assert seen.why_not(2) == ""
    assert seen.why_not(3) == f"it sees 2 GPUs ({ROCR}=2,3), and 3 are wanted"
    assert visible({}, Machine()).why_not(1) == "it sees 0 GPUs, and 1 are wanted"


def test_procs_without_any_gpu() -> None:
    environ = {HIP: "0"}
    visible({ROCR: "2,3", HIP: "5"}, AMD).shares(2, 0).apply(environ, 1)
    assert environ == {CUDA: ""}


# ------------------------------------------------------------------ what the kernel shows


def test_the_kernels_gpus(tmp_path: Path) -> None:
    (tmp_path / "dev").mkdir()
    assert machine(str(tmp_path)) == Machine()
    for name in ("nvidiactl", "nvidia0", "nvidia12", "nvidia-uvm"):
        (tmp_path / "dev" / name).touch()
    assert machine(str(tmp_path)) == Machine(cuda=True, gpus=2)
    (tmp_path / "dev" / "kfd").touch()
    assert machine(str(tmp_path)) == Machine(rocm=True, cuda=True)
    nodes = tmp_path / "sys/class/kfd/kfd/topology/nodes"
    nodes.parent.mkdir(parents=True)
    nodes.touch()  # stands for a folder that we may not list
    assert machine(str(tmp_path)) == Machine(rocm=True, cuda=True)
    nodes.unlink()
    for number, gpu in enumerate(("0", "0", "41098", "2")):
        (nodes / str(number)).mkdir(parents=True)
        (nodes / str(number) / "gpu_id").write_text(f"{gpu}\n")
    # A folder stands for one that the cgroup does not let us read.
    (nodes / "4" / "gpu_id").mkdir(parents=True)
    assert machine(str(tmp_path)) == Machine(rocm=True, cuda=True, gpus=2)

"""GPU libraries, devices and masks, from what a child process was told of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slurmmesh.doctor.checks import Check, State
from slurmmesh.doctor.probe import Told
from slurmmesh.hosts.masks import CUDA, VARIABLES, Machine, visible

SECTION = "GPU"
MASKS = "GPU masks"

_FIRST_HIP = (5, 7)
# Later libraries have these; slurmmesh does without.
_LATER = frozenset(
    {
        "memory_range_handle",
        "hsa_export_dmabuf",
        "hsa_error_string",
        "runtime_error_name",
        "ccl_last_error",
        "ccl_init_config",
        "ccl_split",
        "ccl_finalize",
        "ccl_shrink",
        "ccl_grow",
        "ccl_grow_id",
        "ccl_revoke",
        "ccl_register",
        "ccl_deregister",
        "ccl_mem_alloc",
        "ccl_mem_free",
    }
)


def is_wanted(environ: Mapping[str, str], machine: Machine) -> bool:
    """Whether this node is meant to have a GPU that works."""
    wish = environ.get("SLURMMESH_GPU_PLATFORM", "auto")
    return wish in ("rocm", "cuda") or (wish != "none" and (machine.rocm or machine.cuda))


def checks(
    told: Told, machine: Machine, wanted: bool, torch: tuple[str, str] | None
) -> Iterator[Check]:
    """From the kernel's driver up to the devices.

    Args:
        wanted: see ``is_wanted``; else what is missing is no error.
        torch: see ``python.torch_build``.
    """
    bad: State = "error" if wanted else "note"
    values = told.values
    yield _driver(machine)
    built = values.get("built")
    if built is not None:
        advice = "" if built else "install slurmmesh again where a C compiler is: docs/gpu.md"
        linked = "_bridge_linked" in built
        text = f"built{', also linked against ROCm' if linked else ''}" if built else "not built"
        yield Check(SECTION, "bridge", "ok" if built else bad, text, advice)
    if "config" in values:
        yield Check(SECTION, "settings", "error", values["config"])
    if "unavailable" in values:
        text = "\n".join([values["unavailable"], *values.get("searched", ())])
        advice = "docs/gpu.md tells where they are looked for" if wanted else ""
        yield Check(SECTION, "libraries", bad, text, advice)
    if "platform" in values:
        yield from _libraries(values)
    if torch is not None:
        yield _torch(torch, values.get("platform", {}).get("name", ""), wanted)
    if told.failure:
        advice = (
            "the library or the driver is at fault: see dmesg. SLURMMESH_GPU_LIBRARY=PATH names "
            "another library, SLURMMESH_GPU_PLATFORM=none does without"
        )
        yield Check(SECTION, "libraries", "error", told.failure, advice)
    elif "no_devices" in values:
        advice = "the driver, the masks below, or leave to use the devices" if wanted else ""
        yield Check(SECTION, "devices", bad, values["no_devices"], advice)
    elif "devices" in values:
        yield from _devices(values["devices"], emulated(told))


def emulated(told: Told) -> bool:
    """The libraries are slurmmesh's emulator."""
    return bool(told.values.get("platform", {}).get("emulator"))


def _driver(machine: Machine) -> Check:
    names = [
        name
        for name, there in (("/dev/kfd (ROCm)", machine.rocm), ("/dev/nvidiactl", machine.cuda))
        if there
    ]
    if not names:
        return Check(SECTION, "driver", "note", "no /dev/kfd and no /dev/nvidiactl: no GPU here")
    return Check(SECTION, "driver", "ok", f"{', '.join(names)}; it shows {machine.gpus} GPUs")


def _libraries(values: dict[str, Any]) -> Iterator[Check]:
    platform = values["platform"]
    if platform["emulator"]:
        text = f"EMULATED: {platform['emulator']}. No GPU does what is done with these libraries"
        yield Check(SECTION, "EMULATED", "note", text, "unset LD_LIBRARY_PATH for the real ones")
    versions = values.get("versions", {})
    variant = "linked" if values["linked"] else "found at run time"
    named = {
        "gpu": (platform["gpu_library"], versions.get("driver")),
        "runtime": (platform["runtime_library"], versions.get("runtime")),
        "collectives": (platform["ccl_library"], versions.get("ccl")),
        "hsa": (platform["hsa_library"], None),
    }
    if platform["name"] == "rocm":
        del named["runtime"]
    else:
        del named["hsa"]
    yield Check(SECTION, "platform", "ok", f"{platform['name']}, by the bridge ({variant})")
    for name, (path, version) in named.items():
        if path:
            yield Check(SECTION, name, "ok", f"{path}{f' {version}' if version else ''}")
        else:
            yield Check(SECTION, name, "note", "not found")
    hip = versions.get("driver", "") if platform["name"] == "rocm" else ""
    if hip and _numbers(hip) < _FIRST_HIP:
        text = f"HIP {hip} is too old for DeviceMemory"
        yield Check(SECTION, "version", "warning", text, "take ROCm 5.7 or later")
    yield _missing(values)


def _missing(values: dict[str, Any]) -> Check:
    has_ccl = values["platform"]["ccl_library"]
    missing = [name for name in values["missing"] if has_ccl or not name.startswith("ccl_")]
    if not missing:
        return Check(SECTION, "functions", "ok", f"all {values['symbols']} are there")
    state: State = "note" if _LATER.issuperset(missing) else "warning"
    text = f"missing: {', '.join(missing)}"
    return Check(SECTION, "functions", state, text, "later versions of the libraries have them")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(word) for word in version.split(".") if word.isdecimal())


def _torch(build: tuple[str, str], platform: str, wanted: bool) -> Check:
    kind, version = build
    if not kind:
        advice = "install the torch that is built for these GPUs" if wanted else ""
        state: State = "warning" if wanted else "note"
        return Check(SECTION, "torch", state, "built for CPUs only", advice)
    text = f"built for {kind} {version}"
    if platform and platform != kind:
        advice = f"install the torch for {platform}, or set SLURMMESH_GPU_PLATFORM={kind}"
        return Check(SECTION, "torch", "warning", f"{text}, but found is {platform}", advice)
    return Check(SECTION, "torch", "ok", text)


def _devices(devices: list[dict[str, Any]], labelled: bool) -> Iterator[Check]:
    for each in devices:
        able = ", ".join(
            f"{name} {'not told' if each[name] is None else 'yes' if each[name] else 'no'}"
            for name in ("vmm", "rdma", "dmabuf")
        )
        label = "EMULATED " if labelled else ""
        text = (
            f"{label}{each['name']}, {each['memory_bytes'] / 2**30:.0f} GiB, "
            f"{each['pci_address']}, {each['uuid']}; {able}"
        )
        yield Check(SECTION, f"device {each['index']}", "ok", text)


def mask_checks(environ: Mapping[str, str], machine: Machine) -> Iterator[Check]:
    """The masks that are set, what they leave together, and whether they contradict each other."""
    given = [name for name in VARIABLES if name in environ]
    for name in given:
        yield Check(MASKS, name, "ok", environ[name] or "(empty: no GPU)")
    seen = visible(environ, machine)
    only_one = "set only one of them; spawn_procs(gpus_per_proc=…) does so for procs"
    if seen.conflict:
        yield Check(MASKS, "together", "error", seen.conflict, only_one)
        return
    if seen.note:
        yield Check(MASKS, "together", "warning", seen.note, only_one)
    read = [name for name in given if name in ((CUDA,) if _is_nvidia(machine) else VARIABLES)]
    if len(read) > 1 and not seen.note:
        text = f"{len(read)} masks are set; of them is left {','.join(seen.devices) or 'no GPU'}"
        yield Check(MASKS, "together", "warning", text, only_one)
    elif not given:
        yield Check(MASKS, "masks", "ok", "none is set: processes see all GPUs of the node")
    elif not seen.devices and (machine.gpus or not (machine.rocm or machine.cuda)):
        yield Check(MASKS, "together", "note", "they hide all GPUs")


def _is_nvidia(machine: Machine) -> bool:
    return machine.cuda and not machine.rocm

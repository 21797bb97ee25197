"""Which GPU libraries this process has, or why it has none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from slurmmesh.errors import GpuUnavailable, GpuUnsupported
from slurmmesh.gpu.library import Library, load

# In the numbers that the libraries answer: what a major and a minor version count.
_HIP = (10_000_000, 100_000)
_CUDA = (1000, 10)
_CCL = (10_000, 100)


Name = Literal["rocm", "cuda", "none"]


@dataclass(frozen=True)
class Versions:
    """Versions of the libraries, such as ``7.1.25424``; empty where there is none that tells."""

    runtime: str = ""
    driver: str = ""
    ccl: str = ""


@dataclass(frozen=True)
class Platform:
    """What ``platform`` found. It says nothing about devices: see ``devices``.

    Attributes:
        name: ``rocm``, ``cuda``, or ``none``: there is no GPU library, or no bridge to it.
        reason: why it is ``none``; empty otherwise.
        gpu_library, runtime_library, ccl_library, hsa_library: paths; empty where there is none.
            ROCm's runtime is its GPU library.
        emulator: version text of slurmmesh's emulator of the libraries; empty for real ones.
    """

    name: Name
    reason: str = ""
    gpu_library: str = ""
    runtime_library: str = ""
    ccl_library: str = ""
    hsa_library: str = ""
    emulator: str = ""

    @property
    def emulated(self) -> bool:
        """The libraries are the emulator: nothing that is done with them is done by a GPU."""
        return bool(self.emulator)

    def describe(self) -> str:
        """One line; says EMULATED where it is."""
        if self.name == "none":
            return f"none: {self.reason}"
        label = f", EMULATED ({self.emulator})" if self.emulated else ""
        return f"{self.name}: {self.gpu_library}, {self.ccl_library or 'no collectives'}{label}"

    def versions(self) -> Versions:
        """Versions of the libraries of this process.

        ROCm's starts when it is asked: processes that are forked afterwards cannot use the GPU.

        Raises:
            GpuForked: this is such a process.
        """
        if self.name == "none":
            return Versions()
        library = load()
        gpu = _HIP if self.name == "rocm" else _CUDA
        return Versions(
            runtime=_version(library, "sm_runtime_version", gpu),
            driver=_version(library, "sm_driver_version", gpu),
            ccl=_version(library, "sm_ccl_version", _CCL),
        )


def platform() -> Platform:
    """The platform of this process. It touches no device and starts no library; cheap to repeat.

    Raises:
        ConfigError: a variable of the environment has a value that it cannot have.
    """
    try:
        library = load()
    except GpuUnavailable as error:
        return Platform("none", reason=str(error))
    return Platform(
        cast(Name, library.platform),
        gpu_library=library.path("gpu"),
        runtime_library=library.path("runtime"),
        ccl_library=library.path("ccl"),
        hsa_library=library.path("hsa"),
        emulator=library.emulator,
    )


def _version(library: Library, function: str, units: tuple[int, int]) -> str:
    """``major.minor.patch``, or ``major.minor`` where that is all there is."""
    try:
        number = library.ask(function)
    except GpuUnsupported:
        return ""
    major, rest = divmod(number, units[0])
    minor, patch = divmod(rest, units[1])
    return f"{major}.{minor}" + (f".{patch}" if units is not _CUDA else "")

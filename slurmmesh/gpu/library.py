"""The GPU library of this process, behind the C bridge: found once, called with typed errors.

What is looked for, and where, can be said by environment variables: ``SLURMMESH_GPU_PLATFORM``
(``auto``, ``rocm``, ``cuda``, ``none``), ``SLURMMESH_GPU_LIBRARY`` and ``SLURMMESH_CCL_LIBRARY``
(paths). Else: what the process has loaded already, the dynamic loader's own search, ROCm's and
CUDA's usual folders, and those of Python packages that bring the libraries. A torch for GPUs is
imported first, unless the GPU library is named: it brings libraries of its own, and two copies in
one process know nothing of each other's memory.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import importlib.util
import os
import shutil
import sys
import sysconfig
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from slurmmesh.errors import (
    ConfigError,
    DeviceOutOfMemory,
    GpuError,
    GpuForked,
    GpuUnavailable,
    GpuUnsupported,
    UsageError,
)

Kind = Literal["gpu", "runtime", "ccl", "hsa"]

PLATFORM = "SLURMMESH_GPU_PLATFORM"
GPU_LIBRARY = "SLURMMESH_GPU_LIBRARY"
CCL_LIBRARY = "SLURMMESH_CCL_LIBRARY"

# The numbers of enum sm_platform and enum sm_library.
_PLATFORMS = {"rocm": 1, "cuda": 2, "auto": 3}
_KINDS: tuple[Kind, ...] = ("gpu", "runtime", "ccl", "hsa")
_NAMES = {number: name for name, number in _PLATFORMS.items()}

_AMD_DEVICE, _NVIDIA_DEVICE = Path("/dev/kfd"), Path("/dev/nvidiactl")

# Codes that HIP and CUDA share.
_OUT_OF_MEMORY = 2
_NO_DEVICE = 100
_NOT_SUPPORTED = 801
# If these fail, whatever their code, there is no GPU to be had.
_STARTS = ("hipInit", "cuInit", "hipGetDeviceCount", "cuDeviceGetCount")


@dataclass(frozen=True)
class Symbol:
    """A function of the libraries: its neutral name, its names, and whether it is there.

    Attributes:
        hip, cuda: empty where that platform has no such function.
        type: in C, with handles and addresses as numbers: ``int (uint64_t *, size_t)``.
    """

    neutral: str
    hip: str
    cuda: str
    type: str
    kind: Kind
    present: bool


class Library:
    """What ``load`` found. All its methods may be called from any thread.

    Attributes:
        platform: ``rocm`` or ``cuda``.
        linked: the bridge is the one that is linked against ROCm.
        emulator: version text of slurmmesh's emulator of the libraries; empty for real ones.
        ffi, lib: the bridge as cffi has it; ``cbridge/slurmmesh_bridge.h`` describes it.
    """

    def __init__(self, module: ModuleType) -> None:
        self.ffi: Any = module.ffi
        self.lib: Any = module.lib
        self.linked = module.__name__.endswith("_linked")
        self.platform = _NAMES[self.lib.sm_loaded_platform()]
        self.emulator = self._text(self.lib.sm_emulator_version())
        self._local = threading.local()
        self._answers: dict[str, Any] = {}  # by function: the type of what `ask` gets

    @property
    def emulated(self) -> bool:
        """The libraries are slurmmesh's emulator: nothing done with them was done by a GPU."""
        return bool(self.emulator)

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function of the bridge that can fail; its last parameter, the error, is left out.

        Raises:
            GpuError: or one of its subclasses, by what failed.
            UsageError: an argument that no library could take.
        """
        try:
            error = self._local.error
        except AttributeError:
            error = self._local.error = self.ffi.new("sm_error *")
        if getattr(self.lib, name)(*arguments, error):
            raise self._exception(error)

    def ask(self, name: str, *arguments: Any) -> int:
        """Call a function whose last parameter before the error receives a number; that number."""
        kind = self._answers.get(name)
        if kind is None:
            kind = self.ffi.typeof(getattr(self.lib, name)).args[len(arguments)]
            self._answers[name] = kind
        answer = self.ffi.new(kind)
        self.call(name, *arguments, answer)
        return int(answer[0])

    def text(self, name: str, *arguments: Any) -> str:
        """Call a function whose last parameters before the error receive a text; that text."""
        answer = self.ffi.new("char[1024]")
        self.call(name, *arguments, answer, len(answer))
        return self._text(answer)

    def has(self, neutral: str) -> bool:
        """The library has the function with this neutral name, as in ``memory_create``."""
        return bool(self.lib.sm_has(neutral.encode()))

    def path(self, kind: Kind) -> str:
        """Path of a loaded library; empty where there is none."""
        return self._text(self.lib.sm_library_path(_KINDS.index(kind)))

    def symbols(self) -> tuple[Symbol, ...]:
        """The whole table of functions."""
        return tuple(self._rows())

    def searched(self) -> tuple[str, ...]:
        """A line for each attempt that failed before what is loaded was found."""
        return _searched(self.ffi, self.lib)

    def _rows(self) -> Iterator[Symbol]:
        row = self.ffi.new("sm_symbol_row *")
        index = 0
        while self.lib.sm_symbol(index, row) == 0:
            texts = (row.neutral, row.hip, row.cuda, row.type)
            neutral, hip, cuda, of_type = map(self._text, texts)
            yield Symbol(neutral, hip, cuda, of_type, _KINDS[row.library], bool(row.present))
            index += 1

    def _text(self, pointer: Any) -> str:
        return self.ffi.string(pointer).decode(errors="replace")  # type: ignore[no-any-return]

    def _exception(self, error: Any) -> Exception:
        return _exception(self.ffi, self.lib, error)


_loaded: Library | None = None
_absent: tuple[tuple[str | None, ...], GpuUnavailable] | None = None  # with which variables


def load() -> Library:
    """The GPU library of this process, found at the first call.

    Where there is none it is looked for again only when the variables have changed.

    Raises:
        GpuUnavailable: there is none; ``searched`` tells where it was looked for.
        ConfigError: a variable of the environment has a value that it cannot have.
    """
    global _loaded, _absent
    # Two threads may both get past this: loading twice is fine, and both get the same library.
    if _loaded is None:
        variables = tuple(os.environ.get(name) for name in (PLATFORM, GPU_LIBRARY, CCL_LIBRARY))
        before = _absent
        if before is not None and before[0] == variables:
            raise copy.copy(before[1])
        try:
            _loaded = _load(*variables)
        except GpuUnavailable as error:
            _absent = variables, copy.copy(error)  # without what its traceback holds
            raise
    return _loaded


def _load(named: str | None, gpu_library: str | None, ccl_library: str | None) -> Library:
    platform = named or "auto"
    if platform == "none":
        raise GpuUnavailable(f"{PLATFORM}=none: no GPU is to be used")
    if platform not in _PLATFORMS:
        allowed = ", ".join([*_PLATFORMS, "none"])
        raise ConfigError(f"{PLATFORM}={platform}: it is one of {allowed}")
    if not gpu_library:
        _import_torch_for_gpus()
    rocm = platform == "rocm" or (platform == "auto" and not _only_nvidia())
    module, notes = _bridge(linked=rocm and not gpu_library)
    ffi, lib = module.ffi, module.lib
    error = ffi.new("sm_error *")
    paths = [path.encode() if path else ffi.NULL for path in (gpu_library, ccl_library)]
    folders = ":".join(map(str, _folders())).encode()
    if lib.sm_load(_PLATFORMS[platform], *paths, folders, error):
        raise _exception(ffi, lib, error, notes)
    lib.sm_capsule_start()
    return Library(module)


# ------------------------------------------------------------------ where to look


def _import_torch_for_gpus() -> None:
    """So that the copies of the libraries that torch loads are those that are found."""
    for folder in () if "torch" in sys.modules else _package_folders("torch"):
        if any((folder / "lib" / f"libtorch_{kind}.so").exists() for kind in ("hip", "cuda")):
            with contextlib.suppress(ImportError, OSError):  # it is of no use here, then
                importlib.import_module("torch")


def _only_nvidia() -> bool:
    """The machine may have ROCm's libraries, but only NVIDIA's driver."""
    return _NVIDIA_DEVICE.exists() and not _AMD_DEVICE.exists()


def _bridge(linked: bool) -> tuple[ModuleType, tuple[str, ...]]:
    """The bridge's module, and what there is to say about the one that could not be taken."""
    notes = []
    if linked:
        try:
            return importlib.import_module("slurmmesh._cffi._bridge_linked"), ()
        except ModuleNotFoundError:
            pass  # it is made only where ROCm is
        except ImportError as error:
            notes.append(f"the bridge that is linked against ROCm: {error}")
    try:
        return importlib.import_module("slurmmesh._cffi._bridge"), tuple(notes)
    except ImportError as error:
        raise GpuUnavailable(_not_built(error), searched=tuple(notes)) from error


def _not_built(error: ImportError) -> str:
    """Why there is no bridge, as far as can be seen now."""
    if not isinstance(error, ModuleNotFoundError):
        return f"the C bridge cannot be loaded: {error}"
    missing = []
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        missing.append("a C compiler (Debian: apt-get install gcc libc6-dev)")
    if not Path(sysconfig.get_path("include"), "Python.h").is_file():
        missing.append("Python's headers (Debian: apt-get install python3-dev)")
    lacks = f" This machine lacks {' and '.join(missing)}." if missing else ""
    return (
        "the C bridge was not built when slurmmesh was installed, because no C compiler or no "
        f"Python headers were there.{lacks} Install slurmmesh again with both, in its folder: "
        "pip install --no-deps -e ."
    )


def _folders() -> list[Path]:
    """Where the libraries may be besides the dynamic loader's own folders. Those that are there."""
    rocm = [Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "lib"]
    cuda = [Path(os.environ.get("CUDA_HOME") or "/usr/local/cuda") / "lib64"]
    packages = [parent / "lib" for parent in _package_folders("torch")]
    for parent in _package_folders("nvidia"):
        packages += sorted(parent.glob("*/lib"))
    return [folder for folder in (*rocm, *cuda, *packages) if folder.is_dir()]


def _package_folders(name: str) -> list[Path]:
    """The folders of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return []
    found = spec.submodule_search_locations if spec else None
    return [Path(folder) for folder in found or ()]


# ------------------------------------------------------------------ errors


def _searched(ffi: Any, lib: Any) -> tuple[str, ...]:
    text = ffi.new("char[]", lib.sm_searched(ffi.NULL, 0))
    lib.sm_searched(text, len(text))
    return tuple(ffi.string(text).decode(errors="replace").splitlines())


def _exception(ffi: Any, lib: Any, error: Any, notes: tuple[str, ...] = ()) -> Exception:
    """What the bridge says, as the exception it is."""
    code, from_gpu = error.code, error.origin == lib.SM_ORIGIN_GPU
    symbol, library, text = (
        ffi.string(each).decode(errors="replace")
        for each in (error.symbol, error.library, error.text)
    )
    if code == lib.SM_E_NO_LIBRARY:
        return GpuUnavailable(
            f"{text}. It was looked for:", searched=(*notes, *_searched(ffi, lib)), code=code
        )
    if code == lib.SM_E_ARGUMENT:
        return UsageError(text)
    kind: type[GpuError] = GpuError
    if code in (lib.SM_E_NO_SYMBOL, lib.SM_E_TOO_OLD) or (from_gpu and code == _NOT_SUPPORTED):
        kind = GpuUnsupported
    elif code == lib.SM_E_FORKED:
        kind = GpuForked
    elif from_gpu and (code == _NO_DEVICE or symbol in _STARTS):
        kind = GpuUnavailable
    elif from_gpu and code == _OUT_OF_MEMORY:
        kind = DeviceOutOfMemory
    return kind(text, code=code, symbol=symbol, library=library)

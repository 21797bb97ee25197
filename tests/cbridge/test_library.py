"""slurmmesh.gpu.library: what is found, in which order, and the errors that say why not."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbridge.conftest import WHERE, Ask
from tests.emulator import build

Emulator = Callable[[build.Flavour], Path]


# ------------------------------------------------------------------ what is found


@pytest.mark.parametrize(
    ("platform", "gpu", "runtime"),
    [
        ("rocm", "libamdhip64.so.7", "libamdhip64.so.7"),
        ("cuda", "libcuda.so.1", "libcudart.so.13"),
    ],
)
def test_the_loader_s_own_search(
    ask: Ask, emulator: Emulator, platform: str, gpu: str, runtime: str
) -> None:
    folder = emulator("plain")
    found = ask(WHERE, SLURMMESH_GPU_PLATFORM=platform, LD_LIBRARY_PATH=str(folder))
    assert found["platform"] == platform
    assert found["gpu"] == str(folder / gpu)
    assert found["runtime"] == str(folder / runtime)
    assert "EMULATOR" in found["emulator"]


def test_a_folder_of_rocm_that_the_loader_does_not_know(
    ask: Ask, emulator: Emulator, tmp_path: Path
) -> None:
    shutil.copytree(emulator("plain"), tmp_path / "lib")
    found = ask(WHERE, SLURMMESH_GPU_PLATFORM="rocm", ROCM_PATH=str(tmp_path))
    assert found["gpu"] == str(tmp_path / "lib" / "libamdhip64.so.7")


@pytest.mark.parametrize("platform", ["rocm", "auto"])
def test_a_library_named_by_its_path_is_the_only_one(
    ask: Ask, emulator: Emulator, tmp_path: Path, platform: str
) -> None:
    folder = emulator("plain")
    other = Path(shutil.copytree(folder, tmp_path / "other")) / "libamdhip64.so.7"
    named = {"LD_LIBRARY_PATH": str(folder), "SLURMMESH_GPU_PLATFORM": platform}
    assert ask(WHERE, SLURMMESH_GPU_LIBRARY=str(other), **named)["gpu"] == str(other)
    missing = ask(WHERE, SLURMMESH_GPU_LIBRARY=str(tmp_path / "none.so"), **named)
    assert missing["error"] == "GpuUnavailable"
    assert all("none.so" in line for line in missing["searched"])


def test_of_either_platform_the_path_tells_which(ask: Ask, emulator: Emulator) -> None:
    path = str(emulator("plain") / "libcuda.so.1")
    assert ask(WHERE, SLURMMESH_GPU_LIBRARY=path)["platform"] == "cuda"


@pytest.mark.parametrize("name", ["libamdhip64.so", "libamdhip64-0a1b2c3d.so"])
def test_the_copy_that_the_process_has_comes_first(
    ask: Ask, emulator: Emulator, tmp_path: Path, name: str
) -> None:
    """As torch's wheels bring it: under a name of their own. Not what is only named alike."""
    folder = emulator("plain")
    plugin, loaded = tmp_path / "libamdhip64-plugin.so", tmp_path / name
    subprocess.run(["gcc", "-shared", "-x", "c", "/dev/null", "-o", str(plugin)], check=True)
    shutil.copy(folder / "libamdhip64.so.7", loaded)
    before = f"import ctypes\nctypes.CDLL({str(plugin)!r})\nctypes.CDLL({str(loaded)!r})"
    assert ask(WHERE, before, LD_LIBRARY_PATH=str(folder))["gpu"] == str(loaded)


TORCH = """
import ctypes, pathlib
ctypes.CDLL(pathlib.Path(__file__).with_name("lib") / "libamdhip64.so")
"""


@pytest.mark.parametrize(
    ("kind", "source", "taken"),
    [("hip", TORCH, True), ("cpu", TORCH, False), ("hip", "import no_such_module", False)],
    ids=["for GPUs", "for CPUs", "broken"],
)
def test_the_copy_that_torch_brings_comes_first(
    ask: Ask, emulator: Emulator, tmp_path: Path, kind: str, source: str, taken: bool
) -> None:
    """Though torch was not imported yet: when it is, the process would have two."""
    folder, libraries = emulator("plain"), tmp_path / "torch" / "lib"
    libraries.mkdir(parents=True)
    (libraries.parent / "__init__.py").write_text(source)
    (libraries / f"libtorch_{kind}.so").touch()
    own = Path(shutil.copy(folder / "libamdhip64.so.7", libraries / "libamdhip64.so"))
    found = ask(WHERE, LD_LIBRARY_PATH=str(folder), PYTHONPATH=str(tmp_path))
    assert found["gpu"] == str(own if taken else folder / "libamdhip64.so.7")


# ------------------------------------------------------------------ what is not


@pytest.mark.parametrize("platform", ["rocm", "cuda", "auto"])
def test_without_any_library_the_error_tells_where_it_looked(ask: Ask, platform: str) -> None:
    found = ask(WHERE, SLURMMESH_GPU_PLATFORM=platform)
    if "error" not in found:
        pytest.skip(f"this machine has {found['gpu']}")
    assert found["error"] == "GpuUnavailable"
    names = {"rocm": ["libamdhip64.so.7", "libamdhip64.so.5"], "cuda": ["libcuda.so.1"]}
    wanted = names.get(platform, [*names["rocm"], *names["cuda"]])
    for name in wanted:
        assert any(name in line for line in found["searched"]), found["searched"]
    assert all(line in found["told"] for line in found["searched"])


def test_what_is_not_there_is_looked_for_once(ask: Ask, emulator: Emulator) -> None:
    """The error is the same each time. Other variables are another question."""
    before = """
import os
import slurmmesh.gpu.library as room
searches, real, told = [], room._load, []
room._load = lambda *variables: (searches.append(variables[1]), real(*variables))[1]
for _ in range(3):
    try:
        load()
    except room.GpuUnavailable as error:
        told.append((str(error), error.searched, error.code))
assert searches == ["/no/such.so"] and len(told) == 3 and len(set(told)) == 1, (searches, told)
os.environ["SLURMMESH_GPU_LIBRARY"] = os.environ["LATER"]
"""
    path = str(emulator("plain") / "libcuda.so.1")
    found = ask(WHERE, before, SLURMMESH_GPU_LIBRARY="/no/such.so", LATER=path)
    assert found["gpu"] == path


LINKED = """
import pathlib, sys, types
import slurmmesh.gpu.library as room
from slurmmesh._cffi import _bridge
name = "slurmmesh._cffi._bridge_linked"
sys.modules[name] = types.SimpleNamespace(__name__=name, ffi=_bridge.ffi, lib=_bridge.lib)
room._AMD_DEVICE, room._NVIDIA_DEVICE = map(pathlib.Path, DEVICES)
"""


@pytest.mark.parametrize(
    ("platform", "amd", "nvidia", "linked"),
    [
        ("auto", "/no", "/dev/null", False),
        ("auto", "/dev/null", "/dev/null", True),
        ("auto", "/no", "/no", True),
        ("rocm", "/no", "/dev/null", True),
    ],
)
def test_the_linked_bridge_is_not_for_a_machine_of_nvidia_s(
    ask: Ask, emulator: Emulator, platform: str, amd: str, nvidia: str, linked: bool
) -> None:
    """It brings ROCm's library, which would then be taken, because it is loaded."""
    before = LINKED.replace("DEVICES", repr((amd, nvidia)))
    variables = {"SLURMMESH_GPU_PLATFORM": platform, "LD_LIBRARY_PATH": str(emulator("plain"))}
    found = ask("answer['linked'] = library.linked", before, **variables)
    assert found == {"linked": linked}


def test_no_platform_is_wanted(ask: Ask) -> None:
    found = ask(WHERE, SLURMMESH_GPU_PLATFORM="none")
    assert found["error"] == "GpuUnavailable"
    assert "SLURMMESH_GPU_PLATFORM=none" in found["told"]


def test_a_platform_that_does_not_exist(ask: Ask) -> None:
    found = ask(WHERE, SLURMMESH_GPU_PLATFORM="hip")
    assert found["error"] == "ConfigError"
    assert "rocm, cuda, auto, none" in found["told"]


def test_a_library_of_another_kind(ask: Ask, emulator: Emulator) -> None:
    path = str(emulator("plain") / "libcudart.so.13")
    found = ask(WHERE, SLURMMESH_GPU_PLATFORM="rocm", SLURMMESH_GPU_LIBRARY=path)
    assert found["error"] == "GpuUnavailable"
    assert "another kind of library" in found["told"]


def test_a_bridge_that_was_not_built(ask: Ask) -> None:
    before = """
import sys
for name in ("_bridge", "_bridge_linked"):
    sys.modules["slurmmesh._cffi." + name] = None
"""
    found = ask(WHERE, before, PATH="/nowhere")
    assert found["error"] == "GpuUnavailable"
    assert "C compiler" in found["told"]
    assert "This machine lacks a C compiler" in found["told"]
    assert "pip install" in found["told"]


# ------------------------------------------------------------------ symbols and errors

MISSING = """
answer["has"] = [library.has("memory_create"), library.has("memory_range_handle")]
answer["missing"] = [s.hip for s in library.symbols() if s.hip and not s.present]
answer["more"] = library.ask("sm_ccl_version") if library.has("ccl_version") else 0
library.call("sm_ccl_shrink", 1, library.ffi.NULL, 0, 0, library.ffi.new("uint64_t *"))
"""


def test_a_missing_symbol_names_itself_and_the_file(ask: Ask, emulator: Emulator) -> None:
    """The emulated HIP 6.4 has no dma-bufs of its own, its RCCL 2.13 no ncclCommShrink."""
    folder = str(emulator("old"))
    rocm = {"SLURMMESH_GPU_PLATFORM": "rocm", "LD_LIBRARY_PATH": folder}
    code = MISSING.rpartition("library.call")[0]
    found = ask(code, **rocm)
    assert found["has"] == [True, False]
    assert "hipMemGetHandleForAddressRange" in found["missing"]
    assert "hipMemCreate" not in found["missing"]
    refused = ask(MISSING, **rocm)
    assert refused["error"] == "GpuUnsupported"
    assert refused["symbol"] == "ncclCommShrink"
    assert "ncclCommShrink" in refused["told"]
    if refused["library"]:
        assert refused["library"].startswith(folder)


CREATE = "library.ask('sm_memory_create', {})"
# code -> class of the error, what its text says, and the library's function
FAILURES = {
    CREATE.format("0, 1, 0"): ("GpuError", "hipErrorInvalidValue", "hipMemCreate"),
    CREATE.format("0, 1 << 45, 0"): ("DeviceOutOfMemory", "hipErrorOutOfMemory", "hipMemCreate"),
    CREATE.format("9, 1 << 21, 0"): ("GpuError", "hipErrorInvalidDevice", "hipSetDevice"),
    "library.call('sm_memory_fill', 0, 0, 256, 1)": ("UsageError", "256", ""),
    "library.ask('sm_device_attribute', 0, 77)": ("UsageError", "77", ""),
}


@pytest.mark.parametrize("code", FAILURES)
def test_errors_say_what_failed(ask: Ask, emulator: Emulator, code: str) -> None:
    kind, said, symbol = FAILURES[code]
    folder = str(emulator("plain"))
    found = ask(code, SLURMMESH_GPU_PLATFORM="rocm", LD_LIBRARY_PATH=folder)
    assert found["error"] == kind
    assert said in found["told"]
    if kind != "UsageError":
        assert found["code"] > 0
        assert found["symbol"] == symbol
        assert found["library"].startswith(folder)


def test_no_device(ask: Ask, emulator: Emulator) -> None:
    none = {"LD_LIBRARY_PATH": str(emulator("plain")), "SLURMMESH_EMULATOR_DEVICES": "0"}
    for platform in ("rocm", "cuda"):
        found = ask('library.ask("sm_device_count")', SLURMMESH_GPU_PLATFORM=platform, **none)
        assert found["error"] == "GpuUnavailable"
        assert found["code"] == 100


@pytest.mark.parametrize("platform", ["rocm", "cuda"])
def test_the_last_error_is_cleared(ask: Ask, emulator: Emulator, platform: str) -> None:
    """Who asks HIP next (torch) is not told of a failure that was told here already."""
    code = """
import ctypes
try:
    library.ask("sm_memory_create", 0, 1, 0)
except Exception as error:
    answer["failed"] = error.code
hip = ctypes.CDLL(library.path("gpu"))
answer["last"] = hip.hipGetLastError() if library.platform == "rocm" else 0
"""
    folder = str(emulator("plain"))
    found = ask(code, SLURMMESH_GPU_PLATFORM=platform, LD_LIBRARY_PATH=folder)
    assert found == {"failed": 1, "last": 0}


WELL = """
import ctypes
ffi, lib = library.ffi, library.lib
error = ffi.new("sm_error *", {"text": b"mine"})
handle, fd, offset = ffi.new("uint64_t *"), ffi.new("int *"), ffi.new("uint64_t *")
answer["created"] = lib.sm_memory_create(0, 1 << 21, 0, handle, error)
hip, address = ctypes.CDLL(library.path("gpu")), ctypes.c_uint64()
assert hip.hipMalloc(ctypes.byref(address), ctypes.c_size_t(1 << 21)) == 0
answer["shared"] = lib.sm_memory_dmabuf_fd(address.value, 4096, fd, offset, error)
answer["said"] = ffi.string(error.text).decode()
"""


def test_what_goes_well_at_the_second_attempt_leaves_the_error_alone(
    ask: Ask, emulator: Emulator
) -> None:
    """HIP 5.7 makes only memory that cannot be exported; dma-bufs that HIP lacks are of HSA's."""
    settings = {"SLURMMESH_EMULATOR_HIP_VERSION": "5.7", "SLURMMESH_EMULATOR_DMABUF": "0"}
    rocm = {"SLURMMESH_GPU_PLATFORM": "rocm", "LD_LIBRARY_PATH": str(emulator("plain"))}
    assert ask(WELL, **settings, **rocm) == {"created": 0, "shared": 0, "said": "mine"}


def test_only_a_pointer_that_is_unknown_is_unknown(ask: Ask, emulator: Emulator) -> None:
    rocm = {"SLURMMESH_GPU_PLATFORM": "rocm", "LD_LIBRARY_PATH": str(emulator("plain"))}
    code = """
kind = library.ffi.new("int *", 7)
answer["device"] = library.ask("sm_pointer_kind", int(library.ffi.cast("uintptr_t", kind)), kind)
answer["kind"] = kind[0]
"""
    assert ask(code, **rocm) == {"device": -1, "kind": 0}
    failed = ask(code, SLURMMESH_EMULATOR_DEVICES="0", **rocm)
    assert (failed["symbol"], failed["code"]) == ("hipPointerGetAttribute", 100)


SILENT_HIP = (
    "int hipGetDeviceCount(int *n) { return *n = 0; } int hipMemRelease(void) { return 0; }"
)
FAILING = "int hipRuntimeGetVersion(int *version) { (void)version; return 3; }"


@pytest.mark.parametrize(("more", "kind"), [("", "GpuUnsupported"), (FAILING, "GpuError")])
def test_a_hip_that_does_not_tell_its_version(
    ask: Ask, tmp_path: Path, more: str, kind: str
) -> None:
    source, path = tmp_path / "hip.c", tmp_path / "libamdhip64.so"
    source.write_text(SILENT_HIP + more)
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(path)], check=True)
    named = {"SLURMMESH_GPU_PLATFORM": "rocm", "SLURMMESH_GPU_LIBRARY": str(path)}
    found = ask("library.call('sm_memory_release', 1)", **named)
    assert (found["error"], found["symbol"]) == (kind, "hipRuntimeGetVersion")
    assert "0.0" not in found["told"]


def test_shapes_of_tensors(ask: Ask, emulator: Emulator) -> None:
    """An empty one has no address. Strides fit a number, those of an empty one too."""
    code = """
ffi, made, owner = library.ffi, library.ffi.new("void **"), library.ffi.new("sm_owner **")
library.call("sm_owner_new", 0, library.ask("sm_memory_reserve", 1 << 21, 0, 0), 1 << 21, owner)

def tensor(*shape):
    sizes = ffi.new("int64_t[]", shape)
    library.call("sm_dlpack_new", owner[0], 4096, 1, 0, 0, 8, len(shape), sizes, made)
    found = int(ffi.cast("uintptr_t", ffi.cast("void **", made[0])[0]))
    library.lib.sm_dlpack_delete(made[0])
    return found

answer["data"] = [tensor(2, 3), tensor(), tensor(2, 0), tensor(0, 1 << 62)]
answer["refused"] = []
for shape in ((0, 1 << 62, 8), (1 << 62, 8), (-1,)):
    try:
        tensor(*shape)
    except Exception as error:
        answer["refused"].append(type(error).__name__)
"""
    found = ask(code, SLURMMESH_GPU_PLATFORM="rocm", LD_LIBRARY_PATH=str(emulator("plain")))
    assert found == {"data": [4096, 4096, 0, 0], "refused": ["UsageError"] * 3}


# ------------------------------------------------------------------ forks and threads

FORK = """
import os
if USED:
    library.ask("sm_device_count")
reading, writing = os.pipe()
child = os.fork()
if child == 0:
    try:
        library.ask("sm_device_count")
        said = "fine"
    except Exception as error:
        said = type(error).__name__ + ": " + str(error)
    os.write(writing, said.encode())
    os._exit(0)
os.waitpid(child, 0)
answer["child"] = os.read(reading, 4096).decode()
answer["parent"] = library.ask("sm_device_count")
"""


@pytest.mark.parametrize("platform", ["rocm", "cuda"])
@pytest.mark.parametrize("used", [True, False])
def test_after_a_fork(ask: Ask, emulator: Emulator, platform: str, used: bool) -> None:
    folder = str(emulator("plain"))
    code = FORK.replace("USED", str(used))
    found = ask(code, SLURMMESH_GPU_PLATFORM=platform, LD_LIBRARY_PATH=folder)
    assert found["parent"] == 1
    if used:
        assert found["child"].startswith("GpuForked")
        assert "forked after its parent had used a GPU" in found["child"]
    else:
        assert found["child"] == "fine"


def test_a_fork_while_another_thread_loads(ask: Ask, emulator: Emulator) -> None:
    """The child finds no lock that nobody will release."""
    code = """
import os, threading
from slurmmesh._cffi import _bridge
ffi, lib = _bridge.ffi, _bridge.lib
done = threading.Event()

def loads():
    while not done.is_set():
        lib.sm_load(lib.SM_PLATFORM_ROCM, b"/no/such.so", ffi.NULL, ffi.NULL, ffi.NULL)
        lib.sm_searched(ffi.NULL, 0)

threads = [threading.Thread(target=loads) for _ in range(4)]
for thread in threads:
    thread.start()
codes = set()
for _ in range(50):
    child = os.fork()
    if child == 0:
        lib.sm_load(lib.SM_PLATFORM_ROCM, b"/no/such.so", ffi.NULL, ffi.NULL, ffi.NULL)
        os._exit(7)
    codes.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
done.set()
for thread in threads:
    thread.join()
answer["codes"] = sorted(codes)
"""
    found = ask(code, SLURMMESH_GPU_PLATFORM="rocm", LD_LIBRARY_PATH=str(emulator("plain")))
    assert found == {"codes": [7]}


def test_threads_load_one_library_and_have_errors_of_their_own(
    ask: Ask, emulator: Emulator
) -> None:
    code = """
import slurmmesh.gpu.library as room
from concurrent.futures import ThreadPoolExecutor
room._loaded = None

def failure(size):
    own = room.load()
    try:
        own.ask("sm_memory_create", 0 if size else 9, 1, 0)
    except Exception as error:
        return error.code

with ThreadPoolExecutor(8) as pool:
    answer["codes"] = list(pool.map(failure, [0, 1] * 200))
"""
    found = ask(code, SLURMMESH_GPU_PLATFORM="rocm", LD_LIBRARY_PATH=str(emulator("plain")))
    assert found == {"codes": [101, 1] * 200}

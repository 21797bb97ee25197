"""What one call of a GPU library costs from Python, by the C bridge and by other ways. README.md.

The library is a stub, made here, whose functions do nothing: what is measured is the way there.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import importlib.util
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import results

STUB = """
int hipRuntimeGetVersion(int *version) { *version = 70100000; return 0; }
int hipGetDeviceCount(int *count) { *count = 8; return 0; }
int hipMemMap(void *at, unsigned long size, unsigned long from, void *handle,
              unsigned long long flags)
{ (void)at; (void)size; (void)from; (void)handle; (void)flags; return 0; }
"""

# What one would write with pybind11: the lock is released, a failure is an exception.
PYBIND = """
#include <pybind11/pybind11.h>
#include <stdexcept>
extern "C" int hipGetDeviceCount(int *count);
extern "C" int hipMemMap(void *, unsigned long, unsigned long, void *, unsigned long long);
static void check(int code) { if (code) throw std::runtime_error(std::to_string(code)); }
static int device_count() { int count = 0; check(hipGetDeviceCount(&count)); return count; }
static void memory_map(unsigned long at, unsigned long size, unsigned long handle)
{ check(hipMemMap((void *)at, size, 0, (void *)handle, 0)); }
PYBIND11_MODULE(by_pybind, m)
{
    using release = pybind11::call_guard<pybind11::gil_scoped_release>;
    m.def("device_count", &device_count, release());
    m.def("memory_map", &memory_map, release());
}
"""

ADDRESS, SIZE, HANDLE = 1 << 40, 1 << 21, 1 << 30

# The rows; of each, a way has what it does.
Way = dict[str, Callable[[], Any]]
COUNT = "a number is asked for (the device count)"
MAP = "three numbers are given (memory is mapped)"


def make(folder: Path, name: str, source: str, *flags: str) -> Path:
    """Compile a shared library. Raises SystemExit with what the compiler said."""
    text = folder / f"{name}.txt"
    text.write_text(source)
    made = folder / name
    command = ["-x", "c++" if "pybind11" in source else "c", str(text), "-x", "none", *flags]
    compiler = "c++" if "pybind11" in source else "cc"
    try:
        done = subprocess.run(
            [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), *command],
            capture_output=True,
            text=True,
        )
    except OSError as error:
        raise SystemExit(f"this benchmark needs a C compiler: {error}") from error
    if done.returncode:
        raise SystemExit(done.stderr)
    return made


def by_bridge() -> tuple[Way, Way]:
    """As slurmmesh calls it; and what cffi alone makes of that, without looking at the answer."""
    from slurmmesh.gpu.library import load

    library = load()
    ffi, lib = library.ffi, library.lib
    error, count = ffi.new("sm_error *"), ffi.new("int *")
    call, device_count, memory_map = library.call, lib.sm_device_count, lib.sm_memory_map
    ours = {
        COUNT: lambda: call("sm_device_count", count),
        MAP: lambda: call("sm_memory_map", ADDRESS, SIZE, HANDLE),
    }
    bare = {
        COUNT: lambda: device_count(count, error),
        MAP: lambda: memory_map(ADDRESS, SIZE, HANDLE, error),
    }
    return ours, bare


def by_ctypes(stub: Path) -> Way:
    """The stub's functions with their types declared; the answer is looked at."""
    library = ctypes.CDLL(str(stub))
    device_count, memory_map = library.hipGetDeviceCount, library.hipMemMap
    device_count.argtypes = [ctypes.POINTER(ctypes.c_int)]
    memory_map.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]
    memory_map.argtypes.append(ctypes.c_ulonglong)
    count = ctypes.c_int()
    pointer = ctypes.byref(count)

    def check(code: int) -> None:
        if code:
            raise OSError(code)

    return {
        COUNT: lambda: check(device_count(pointer)),
        MAP: lambda: check(memory_map(ADDRESS, SIZE, 0, HANDLE, 0)),
    }


def pybind_headers() -> Path | None:
    """Those of pybind11, or the copy that torch brings; None where there is neither."""
    for package, inside in (("pybind11", "include"), ("torch", "include")):
        spec = importlib.util.find_spec(package)
        for parent in (spec.submodule_search_locations or ()) if spec else ():
            if (Path(parent) / inside / "pybind11" / "pybind11.h").is_file():
                return Path(parent) / inside
    return None


def by_pybind(folder: Path, stub: Path, headers: Path) -> Way:
    """An extension made with pybind11, linked against the stub."""
    include = [f"-I{headers}", f"-I{sysconfig.get_path('include')}"]
    make(folder, "by_pybind.so", PYBIND, "-std=c++17", *include, str(stub))
    sys.path.insert(0, str(folder))
    module = importlib.import_module("by_pybind")
    sys.path.remove(str(folder))
    memory_map = module.memory_map
    return {COUNT: module.device_count, MAP: lambda: memory_map(ADDRESS, SIZE, HANDLE)}


def time_calls(call: Callable[[], Any], calls: int) -> float:
    """Nanoseconds of one call, the mean of many in a row; without the loop around them."""

    def nothing() -> None:
        return None

    def loop(what: Callable[[], Any]) -> int:
        began = time.perf_counter_ns()
        for _ in range(calls):
            what()
        return time.perf_counter_ns() - began

    return (loop(call) - loop(nothing)) / calls


def measure(rounds: int, calls: int) -> list[results.Row]:
    """A row for each kind of call."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        stub = make(folder, "libamdhip64.so.7", STUB, "-Wl,-soname,libamdhip64.so.7")
        os.environ.update(SLURMMESH_GPU_PLATFORM="rocm", SLURMMESH_GPU_LIBRARY=str(stub))
        ours, bare = by_bridge()
        ways = {"ours": ours, "cffi": bare, "ctypes": by_ctypes(stub)}
        headers = pybind_headers()
        if headers is None:
            print("pybind11 is missing and left out", file=sys.stderr)
        else:
            ways["pybind11"] = by_pybind(folder, stub, headers)
        rows = []
        for row in (COUNT, MAP):
            turns = {
                way: lambda call=found[row]: time_calls(call, calls)  # type: ignore[misc]
                for way, found in ways.items()
            }
            for turn in turns.values():
                turn()  # not counted
            samples = results.in_turns(turns, rounds)
            rows.append(results.Row(row, "ns", "lower", samples.pop("ours"), samples))
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, and write the file; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bridge", description=__doc__)
    parser.add_argument("--json", type=Path, help="file to write the rows to")
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--calls", type=int, default=2000, help="in one sample")
    options = parser.parse_args(argv)
    if options.rounds < 1 or options.calls < 1:
        parser.error("--rounds and --calls: give 1 or more")
    if options.json and not options.json.absolute().parent.is_dir():
        parser.error(f"there is no folder {options.json.parent}")
    rows = measure(options.rounds, options.calls)
    print(results.table(rows))
    if options.json:
        results.write(options.json, results.machine(f"load {results.load()}"), rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What is alive of device memory in this process, for tests that look for leaks."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

from slurmmesh.gpu.library import load


class _Alive(ctypes.Structure):
    """``struct emu_alive`` (tests/emulator/emulator.h)."""

    _fields_ = [
        (name, ctypes.c_uint64) for name in ("allocations", "mappings", "reservations", "streams")
    ]


def alive() -> dict[str, int]:
    """Owners of the bridge and open descriptors; of the emulator also all that it has made."""
    gc.collect()
    library = load()
    found = {"owners": int(library.lib.sm_owners()), "descriptors": descriptors()}
    if library.emulated:
        counted = _Alive()
        # Loaded already, so this is the bridge's copy.
        ctypes.CDLL(library.path("gpu")).slurmmesh_emulator_alive(ctypes.byref(counted))
        found |= {name: getattr(counted, name) for name, _ in _Alive._fields_}
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def maps() -> int:
    """Mappings of this process, of any kind."""
    return Path("/proc/self/maps").read_text().count("\n")


def resident_bytes() -> int:
    """Memory of this process that is in RAM and its own."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(fields["RssAnon"].split()[0]) << 10

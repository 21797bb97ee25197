"""What the bridge answers with the libraries that this process finds, as JSON.

``python -m tests.gpu.real.probe rocm|cuda|auto [CCL LIBRARY]``. Made for machines without a GPU:
each question is asked once, and an error is an answer too.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from slurmmesh._cffi._bridge import ffi, lib

PAGE = 2 * 1024 * 1024
TEXTS = ("symbol", "library", "text")


def text(of: Any) -> str:
    return ffi.string(of).decode()


def answer(call: Callable[..., int], *arguments: Any, out: str = "") -> dict[str, Any]:
    """Of one function: {"value": …}, or {"code": …, "origin": …, "symbol": …, …}.

    ``out``: the type of its out parameters, all alike, that stand first; they are None in
    ``arguments``.
    """
    error = ffi.new("sm_error *")
    outs = [ffi.new(f"{out} *") for argument in arguments if argument is None]
    waiting = iter(outs)
    code = call(*(next(waiting) if a is None else a for a in arguments), error)
    if code == 0:
        values = [int(value[0]) for value in outs]
        return {"code": 0, "value": values[0] if len(values) == 1 else values}
    told = {name: text(getattr(error, name)) for name in TEXTS}
    return {"code": code, "told": error.code, "origin": error.origin, **told}


def unique_id() -> dict[str, Any]:
    buffer = ffi.new("unsigned char[128]")
    found = answer(lib.sm_ccl_unique_id, buffer)
    return {**found, "value": bytes(buffer).hex()} if found["code"] == 0 else found


def symbols() -> list[dict[str, Any]]:
    rows, row = [], ffi.new("sm_symbol_row *")
    while lib.sm_symbol(len(rows), row) == 0:
        names = {name: text(getattr(row, name)) for name in ("neutral", "hip", "cuda")}
        rows.append({**names, "library": row.library, "present": bool(row.present)})
    return rows


def answers() -> dict[str, dict[str, Any]]:
    ident = bytes.fromhex(unique_id().get("value", "00" * 128))
    name = ffi.new("char[64]")
    here = int(ffi.cast("uint64_t", name))
    return {
        "init": answer(lib.sm_init),
        "runtime_version": answer(lib.sm_runtime_version, None, out="int"),
        "driver_version": answer(lib.sm_driver_version, None, out="int"),
        "device_count": answer(lib.sm_device_count, None, out="int"),
        "device_name": answer(lib.sm_device_name, 0, name, 64),
        "device_memory": answer(lib.sm_device_memory, 0, None, out="size_t"),
        "device_set": answer(lib.sm_device_set, 0),
        "stream_create": answer(lib.sm_stream_create, 0, None, out="uint64_t"),
        "pointer_kind": answer(lib.sm_pointer_kind, here, None, None, out="int"),
        "memory_granularity": answer(lib.sm_memory_granularity, 0, 0, None, out="size_t"),
        "memory_create": answer(lib.sm_memory_create, 0, PAGE, 0, None, out="uint64_t"),
        "memory_reserve": answer(lib.sm_memory_reserve, PAGE, 0, 0, None, out="uint64_t"),
        "ccl_version": answer(lib.sm_ccl_version, None, out="int"),
        "ccl_init": answer(lib.sm_ccl_init, None, ident, 0, 1, 0, 1, out="uint64_t"),
        "ccl_init_at_once": answer(lib.sm_ccl_init, None, ident, 0, 1, 0, 0, out="uint64_t"),
        "ccl_mem_alloc": answer(lib.sm_ccl_mem_alloc, 0, PAGE, None, out="uint64_t"),
    }


def main(platform: str, ccl_library: str = "") -> dict[str, Any]:
    number = getattr(lib, f"SM_PLATFORM_{platform.upper()}")
    ccl = ccl_library.encode() or ffi.NULL
    found = {"load": answer(lib.sm_load, number, ffi.NULL, ccl, ffi.NULL)}
    lines = ffi.new("char[]", 8192)
    lib.sm_searched(lines, 8192)
    found["searched"] = text(lines).splitlines()
    if found["load"]["code"] != 0:
        return found
    return {
        **found,
        "platform": lib.sm_loaded_platform(),
        "paths": [text(lib.sm_library_path(kind)) for kind in range(4)],
        "emulator": text(lib.sm_emulator_version()),
        "symbols": symbols(),
        "unique_ids": [unique_id(), unique_id()],
        "answers": answers(),
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))

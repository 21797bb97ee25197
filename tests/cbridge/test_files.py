"""Files that the dynamic loader would hang on, or die of: they are refused, and named."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cbridge.conftest import WHERE, Ask
from tests.emulator import build

Emulator = Callable[[build.Flavour], Path]


@pytest.mark.parametrize("variable", ["SLURMMESH_GPU_LIBRARY", "SLURMMESH_CCL_LIBRARY"])
def test_a_fifo_is_not_waited_for(
    ask: Ask, emulator: Emulator, tmp_path: Path, variable: str
) -> None:
    os.mkfifo(tmp_path / "fifo")
    named = {variable: str(tmp_path / "fifo"), "LD_LIBRARY_PATH": str(emulator("plain"))}
    found = ask(WHERE, SLURMMESH_GPU_PLATFORM="rocm", **named)
    assert found["error"] == "GpuUnavailable"
    assert found["searched"][-1] == f"{tmp_path}/fifo: it is not a regular file"
    later = "answer = {'code': library.lib.sm_load(3, ffi.new('char[]', FIFO), *[ffi.NULL] * 3)}"
    code = later.replace("FIFO", repr(bytes(tmp_path / "fifo"))).replace("ffi", "library.ffi")
    assert ask(code, LD_LIBRARY_PATH=str(emulator("plain")))["code"] < 0


def test_a_file_that_is_cut_off_does_not_end_the_process(
    ask: Ask, emulator: Emulator, tmp_path: Path
) -> None:
    before = """
import os
from pathlib import Path
from slurmmesh.errors import GpuUnavailable
whole, folder = Path(os.environ["WHOLE"]).read_bytes(), Path(os.environ["FOLDER"])
told = {}
for size in (*range(0, 1000, 50), *range(1000, len(whole), len(whole) // 100)):
    path = folder / f"{size}.so"
    path.write_bytes(whole[:size])
    os.environ["SLURMMESH_GPU_LIBRARY"] = str(path)
    try:
        load()
        break
    except GpuUnavailable as error:
        told[size] = error.searched[0]
        assert str(path) in told[size], told
"""
    code = "answer = {'first': told[0], 'amid': told[950], 'last': told[max(told)]}"
    whole = str(emulator("plain") / "libamdhip64.so.7")
    found = ask(code, before, WHOLE=whole, FOLDER=str(tmp_path), SLURMMESH_GPU_PLATFORM="rocm")
    assert "file too short" in found["first"]
    assert "it is cut off" in found["amid"]
    assert "its segments do not end within the file" in found["last"]

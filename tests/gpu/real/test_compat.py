"""CUDA's names over real libraries: the functions are found, and errors are told alike."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

import pytest

from tests.gpu.real.libraries import Libraries

PROGRAM = """
import ctypes, json
from slurmmesh.gpu import compat as cuda

def text(function, code):
    out = ctypes.c_char_p()
    assert function(code, ctypes.byref(out)) == 0
    return out.value.decode()

code = cuda.cuInit(0)
words = [text(function, code) for function in (cuda.cuGetErrorName, cuda.cuGetErrorString)]
missing = [name for name in cuda.names() if not cuda.has(name)]
print(json.dumps([code, *words, cuda.translate("cuMemCreate"), missing]))
"""


@pytest.mark.parametrize(
    ("name", "error", "create"),
    [
        ("debian-12", "hipError", "hipMemCreate"),
        ("debian-13", "hipError", "hipMemCreate"),
        ("debian-unstable", "hipError", "hipMemCreate"),
        ("debian-nvidia+pypi", "CUDA_ERROR", "cuMemCreate"),
    ],
)
def test_names_over_real_libraries(
    libraries: Callable[[str], Libraries], name: str, error: str, create: str
) -> None:
    if os.path.exists("/dev/kfd") or os.path.exists("/dev/nvidiactl"):
        pytest.skip("this machine has a GPU; this says what is told without one")
    code, word, text, own, missing = json.loads(libraries(name).run("-c", PROGRAM))
    assert code in (100, 101)
    assert word.startswith(error)
    assert text
    assert own == create
    contexts = {each for each in missing if "Ctx" in each}
    assert set(missing) - contexts <= {"cuMemGetHandleForAddressRange"}
    assert bool(contexts) == (error == "hipError")

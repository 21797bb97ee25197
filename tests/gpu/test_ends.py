"""How communicators end, on the emulator: threads, watchers, forks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.emulator import build
from tests.gpu import programs_ends as ends
from tests.gpu.running import Gpu
from tests.gpu.worlds import run

GpuOf = Callable[..., Gpu]


def test_two_threads_finalize(emulator: GpuOf) -> None:
    emulator().run(ends.finalized_by_two)


def test_a_library_that_does_not_give_it_back(emulator: GpuOf) -> None:
    said = emulator("rocm-6.4").run(ends.not_given_back)
    assert "the library has not given the communicator back within 0.3 s" in said


def test_finalize_has_one_deadline(emulator: GpuOf, tmp_path: Path) -> None:
    run(emulator(), tmp_path, ends.one_deadline, 2)


@pytest.mark.parametrize("flavour", ["plain", pytest.param("asan", marks=pytest.mark.slow)])
def test_memory_is_not_freed_amid_a_collective(
    emulator: GpuOf, tmp_path: Path, flavour: build.Flavour
) -> None:
    told = run(emulator(flavour=flavour), tmp_path, ends.freed_amid, 2)[0]
    assert (told["kind"], told["operation"], told["world"]) == ("DeviceBusy", "all_reduce", "world")
    assert told["peers"] == told["late"] == [1]
    assert re.search(r"^device 0 \(.*\): memory could not be given back", told["text"])
    assert re.search(r"rank 1 \(pid \d+ on \S+\) is alive, but has not arrived", told["text"])
    assert "Call abort() of the communicator 'world', then free() again" in told["text"]


def test_watchers_that_fail(emulator: GpuOf) -> None:
    said = emulator().run(ends.watched)
    assert [text.rpartition(" ")[2] for text in said] == ["ends", "fails"]
    assert "name='all_reduce'" in said[0]
    assert "<Communicator 'watched': rank 0 of 1" in said[0]


def test_a_forked_child(emulator: GpuOf) -> None:
    emulator().run(ends.forked)

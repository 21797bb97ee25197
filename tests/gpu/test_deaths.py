"""Ranks that die at each phase, or do what others do not, on the emulator."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import programs_deaths as deaths
from tests.gpu.running import Gpu
from tests.gpu.worlds import run, world

GpuOf = Callable[..., Gpu]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "phase", "function", "after", "operations", "blamed"),
    [
        ("rocm-7.1", "init", "sm_ccl_init", False, ["init"], 2),
        ("rocm-6.4", "init", "sm_ccl_init", False, ["init"], 2),
        ("rocm-7.1", "operation", "sm_ccl_all_reduce", False, ["all_reduce"], 2),
        ("rocm-7.1", "operation", "sm_ccl_all_reduce", True, ["all_reduce"], 2),
        ("rocm-6.4", "operation", "sm_ccl_all_reduce", True, ["all_reduce"], 2),
        ("rocm-7.1", "split", "sm_ccl_all_gather", True, ["split", "init"], 2),
        ("rocm-7.1", "split", "sm_ccl_split", False, ["init"], 2),
        ("rocm-7.1", "shrink", "sm_ccl_shrink", True, ["init", "all_reduce"], 1),
    ],
)
def test_the_dead_are_named_whenever_they_die(
    emulator: GpuOf,
    tmp_path: Path,
    name: str,
    phase: str,
    function: str,
    after: bool,
    operations: list[str],
    blamed: int,
) -> None:
    with world(emulator(name), tmp_path, deaths.phases, 3, phase, function, after) as ranks:
        told = [rank.finish() for rank in ranks[:2]]
        assert ranks[2].end()[0] == -signal.SIGKILL
    for rank, error in enumerate(told):
        if phase == "shrink" and rank == 0:
            assert error is None
        else:
            assert error["operation"] in operations
            assert error["peers"] == [blamed]
            assert "is dead" in error["text"]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_a_death_amid_finalize_holds_nobody_up(
    emulator: GpuOf, tmp_path: Path, after: bool
) -> None:
    arguments = ("", "sm_ccl_finalize", after)
    with world(emulator(), tmp_path, deaths.phases, 3, *arguments) as ranks:
        assert [rank.finish() for rank in ranks[:2]] == [None, None]
        ranks[2].end()


@pytest.mark.slow
def test_ranks_that_disagree_are_told(emulator: GpuOf, tmp_path: Path) -> None:
    told = run(emulator(), tmp_path, deaths.disagree, 3)
    assert any("has called broadcast as operation 1" in error["text"] for error in told)


def test_a_rank_that_is_there_twice(emulator: GpuOf, tmp_path: Path) -> None:
    told = run(emulator(), tmp_path, deaths.twice, 3)
    assert {error["operation"] for error in told} == {"init"}
    assert any("rank 1 is there already" in error["text"] for error in told)


def test_two_communicators_in_two_threads(emulator: GpuOf, tmp_path: Path) -> None:
    run(emulator(), tmp_path, deaths.threads, 3)


@pytest.mark.parametrize(
    ("exporter", "importer", "arguments", "dead"),
    [
        (deaths.dying_exporter, deaths.heir, ("amid",), 0),
        (deaths.dying_exporter, deaths.heir, ("sent",), 0),
        (deaths.bereaved_exporter, deaths.dying_importer, (), 1),
    ],
)
def test_a_death_amid_sharing(
    emulator: GpuOf, exporter: Any, importer: Any, arguments: tuple[str, ...], dead: int
) -> None:
    ends = socket.socketpair()
    pair = []
    for program, end in zip((exporter, importer), ends, strict=True):
        pair.append(emulator().start(program, *arguments, fds=(end.fileno(),)))
        end.close()
    codes = [(code, text) for code, _, text in (one.end() for one in pair)]
    assert codes[dead][0] == -signal.SIGKILL
    assert codes[1 - dead][0] == 0, codes[1 - dead][1]

"""Communicators on emulated GPUs: ranks are processes, which are killed, stopped, and late."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.gpu import programs_collectives as programs
from tests.gpu import programs_failures as failures
from tests.gpu import programs_interrupts as interrupts
from tests.gpu.running import Gpu
from tests.gpu.worlds import go, pids, run, world

GpuOf = Callable[..., Gpu]


@pytest.fixture
def rocm(emulator: GpuOf) -> Gpu:
    return emulator("rocm-7.1")


# ------------------------------------------------------------------ what they compute


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "examples"),
    [
        ("rocm-7.1", 4, 25),
        ("cuda", 2, 15),
        ("rocm-7.1", 3, 100),
    ],
)
def test_collectives_against_torch(
    emulator: GpuOf, tmp_path: Path, name: str, size: int, examples: int
) -> None:
    assert len(run(emulator(name), tmp_path, programs.collectives, size, examples)) == size


@pytest.mark.slow
def test_collectives_under_sanitizers(emulator: GpuOf, tmp_path: Path) -> None:
    ended = run(emulator(flavour="asan"), tmp_path, programs.collectives, 2, 20)
    assert len(ended) == 2


@pytest.mark.parametrize("name", ["rocm-7.1", "cuda"])
def test_memory_streams_and_groups(emulator: GpuOf, tmp_path: Path, name: str) -> None:
    run(emulator(name), tmp_path, programs.memory, 2)


def test_what_makes_no_sense_is_refused(gpu: Gpu) -> None:
    gpu.run(programs.refused)


def test_a_communicator_of_one(gpu: Gpu) -> None:
    gpu.run(programs.alone)


@pytest.mark.slow
def test_an_rccl_that_can_only_block(emulator: GpuOf, tmp_path: Path) -> None:
    said = run(emulator("rocm-6.4"), tmp_path, programs.old, 2)[0]
    assert "has not begun to join" in said


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("silent", [0, 1])
@pytest.mark.parametrize("name", ["rocm-7.1", pytest.param("cuda", marks=pytest.mark.slow)])
def test_a_killed_rank_is_named(
    emulator: GpuOf, tmp_path: Path, wait_until: Any, name: str, silent: int
) -> None:
    """The library notices it, or it does not: then the time is over, and it is found dead."""
    timeout = 1 if silent else 30
    with world(
        emulator(name), tmp_path, failures.witness, 4, timeout, silent=silent, ccl_version="2.27.7"
    ) as ranks:
        victim = pids(tmp_path, 4, wait_until)[3]
        os.kill(victim, signal.SIGKILL)
        go(tmp_path)
        told = [rank.finish() for rank in ranks[:3]]
        ranks[3].end()
    for rank, error in enumerate(told):
        assert error["kind"] == ("CollectiveTimeout" if silent else "CollectiveError")
        assert (error["operation"], error["rank"], error["size"]) == ("all_reduce", rank, 4)
        assert (error["world"], error["peers"], error["late"]) == ("world", [3], [])
        assert re.search(rf"rank 3 \(pid {victim} on \S+\) is dead", error["text"])
        assert "EMULATED" in error["text"]


@pytest.mark.slow
def test_a_death_that_nobody_notices_is_found_before_the_time_is_over(
    rocm: Gpu, tmp_path: Path, wait_until: Any
) -> None:
    with world(rocm, tmp_path, failures.witness, 2, 600, silent=1) as ranks:
        os.kill(pids(tmp_path, 2, wait_until)[1], signal.SIGKILL)
        go(tmp_path)
        assert ranks[0].finish()["peers"] == [1]
        ranks[1].end()


def test_a_stopped_rank_is_alive_and_has_not_arrived(
    rocm: Gpu, tmp_path: Path, wait_until: Any
) -> None:
    with world(rocm, tmp_path, failures.witness, 3, 1) as ranks:
        victim = pids(tmp_path, 3, wait_until)[2]
        os.kill(victim, signal.SIGSTOP)
        go(tmp_path)
        told = [rank.finish() for rank in ranks[:2]]
        ranks[2].kill()
        ranks[2].end()
    late = [error for error in told if error["kind"] == "CollectiveTimeout"]
    assert late  # the other one may have heard of the first one's abort
    for error in told:
        assert error["peers"] == error["late"] == [2]
        assert re.search(
            rf"rank 2 \(pid {victim} on \S+\) is alive and stopped by a signal, but has not "
            "arrived: it has come to operation 1, all_reduce; this rank is at 2, all_reduce",
            error["text"],
        )


def test_the_other_half_of_a_pair_is_named(rocm: Gpu, tmp_path: Path) -> None:
    told = run(rocm, tmp_path, failures.astray, 2)[0]
    assert (told["kind"], told["operation"], told["peers"]) == ("CollectiveTimeout", "recv", [1])
    assert "it is with rank 1" in told["text"]
    assert "is in no operation" in told["text"]


@pytest.mark.slow
def test_supervision_names_ranks_of_other_hosts(rocm: Gpu, tmp_path: Path) -> None:
    told = run(rocm, tmp_path, failures.elsewhere, 2)[0]
    assert (told["kind"], told["peers"]) == ("CollectiveError", [1])
    assert "rank 1 is dead: so the program's supervision says" in told["text"]


@pytest.mark.parametrize("name", ["rocm-7.1", pytest.param("cuda", marks=pytest.mark.slow)])
def test_who_does_not_join_in_time_is_named(emulator: GpuOf, tmp_path: Path, name: str) -> None:
    told = run(emulator(name), tmp_path, failures.late_joiner, 2)[0]
    assert (told["operation"], told["peers"], told["late"]) == ("init", [1], [1])
    assert "is alive, but has not begun to join" in told["text"]


@pytest.mark.parametrize(
    ("flavour", "rounds"), [("plain", 10), pytest.param("asan", 40, marks=pytest.mark.slow)]
)
def test_abort_frees_calls_and_races_with_them(
    emulator: GpuOf, tmp_path: Path, flavour: Any, rounds: int
) -> None:
    run(emulator(flavour=flavour), tmp_path, failures.aborted, 2, rounds)


def test_the_interpreter_ends_while_operations_wait(rocm: Gpu, tmp_path: Path) -> None:
    with world(rocm, tmp_path, failures.at_exit, 2) as ranks:
        assert ranks[0].end()[0] == 0
        go(tmp_path, "gone")
        assert ranks[1].end()[0] == 0


@pytest.mark.parametrize(
    "program",
    [
        interrupts.aborted,
        interrupts.interrupted,
        interrupts.interrupted_split,
        interrupts.others_go_on,
    ],
)
@pytest.mark.parametrize("flavour", ["plain", pytest.param("asan", marks=pytest.mark.slow)])
def test_signals_amid_things(
    emulator: GpuOf, tmp_path: Path, program: Callable[..., None], flavour: Any
) -> None:
    run(emulator(flavour=flavour), tmp_path, program, 2)


def test_a_signal_amid_what_is_pending(rocm: Gpu) -> None:
    rocm.run(interrupts.aborted_amid_pending)


def test_a_new_rank_that_nobody_expects_gives_up_in_time(rocm: Gpu) -> None:
    rocm.run(interrupts.lonely)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rocm-7.1", "cuda"])
def test_a_thousand_communicators_leave_nothing(emulator: GpuOf, name: str) -> None:
    grown, mapped = emulator(name).run(programs.many, 1000)
    assert grown < 8 << 20
    assert mapped < 50


# ------------------------------------------------------------------ others made of it


def test_split_revoke_shrink_and_grow(rocm: Gpu, tmp_path: Path, wait_until: Any) -> None:
    with world(rocm, tmp_path, failures.regrouped, 4) as ranks:
        os.kill(pids(tmp_path, 4, wait_until)[3], signal.SIGKILL)
        new = rocm.start(failures.newcomer, str(tmp_path), 3, 4)
        go(tmp_path)
        assert [rank.finish() for rank in ranks[:3]] == [[[3], 10.0]] * 3
        assert new.finish() == 10.0
        ranks[3].end()


# ------------------------------------------------------------------ from actors


@pytest.mark.parametrize("name", ["rocm-7.1", pytest.param("cuda", marks=pytest.mark.slow)])
def test_actors(emulator: GpuOf, name: str) -> None:
    """The proc of one is killed: the others name it. A new mesh makes a new communicator."""
    printed = emulator(name).script("from tests.gpu.actors_collectives import main; main()")
    described, first, (victim, told), second = map(json.loads, printed.splitlines())
    assert "EMULATED" in described
    assert first == second == [{"sum": 4}] * 4
    for error in told:
        assert (error["peers"], error["world"]) == ([3], "first")
        assert f"rank 3 (pid {victim} on " in error["text"]

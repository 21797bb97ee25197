"""The emulated collectives: ranks are processes, which are killed, hang, abort and leave."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.emulator import programs_collectives as programs
from tests.emulator import programs_failures as failures
from tests.emulator.build import Flavour, emulator, environment
from tests.emulator.conftest import ROOT, command

InChild = Callable[..., str]
ASAN = pytest.param("asan", marks=pytest.mark.slow)
FLAVOURS = pytest.mark.parametrize("flavour", ["plain", ASAN])


class Process:
    """A rank: its lines are read and written one by one."""

    def __init__(self, program: Callable[..., Any], arguments: tuple[Any, ...], env: Any) -> None:
        self.process = subprocess.Popen(
            command(program, *arguments),
            cwd=ROOT,
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        said = self.process.stdout.readline().strip()
        assert said, self.end()
        return said

    def tell(self, text: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """Waits for its end; what it wrote to stderr if it failed, else nothing."""
        _, wrote = self.process.communicate(timeout=120)
        return f"{self.process.returncode}: {wrote}" if self.process.returncode else ""


@contextlib.contextmanager
def world(
    program: Callable[..., Any],
    size: int,
    *arguments: Any,
    flavour: Flavour = "plain",
    told: str = "",
    **settings: Any,
) -> Iterator[list[Process]]:
    """The ranks of a communicator; rank 0 has made the unique id for the others."""
    env = environment(emulator(flavour), **settings)
    ranks: list[Process] = []
    unique_id = ""
    try:
        for rank in range(size):
            if rank == 1:
                unique_id = ranks[0].line()
            ranks.append(Process(program, (rank, size, unique_id, *arguments), env))
            if told:
                ranks[-1].tell(told)
        yield ranks
    finally:
        for rank in ranks:
            rank.process.kill()
            rank.process.communicate()


def all_fine(program: Callable[..., Any], size: int, *arguments: Any, **settings: Any) -> None:
    with world(program, size, *arguments, **settings) as ranks:
        failed = {number: wrote for number, rank in enumerate(ranks) if (wrote := rank.end())}
        assert not failed, "\n".join(f"rank {number} {wrote}" for number, wrote in failed.items())


@FLAVOURS
@pytest.mark.parametrize("size", [2, 4])
def test_all_collectives(size: int, flavour: Flavour) -> None:
    all_fine(programs.collectives, size, flavour=flavour)


def test_all_collectives_of_nccl() -> None:
    all_fine(programs.collectives, 3, "cuda")


@FLAVOURS
def test_all_types_with_all_reductions(flavour: Flavour) -> None:
    all_fine(programs.types, 3, flavour=flavour)


@FLAVOURS
def test_pairs_in_groups_do_not_wait_for_each_other(flavour: Flavour) -> None:
    all_fine(programs.pairs, 3, flavour=flavour)


def test_pairs_of_nccl() -> None:
    all_fine(programs.pairs, 2, "cuda")


def test_bad_arguments_are_refused() -> None:
    all_fine(programs.refused, 2)


@FLAVOURS
def test_without_blocking_all_returns_at_once(flavour: Flavour) -> None:
    # The other ranks start only after rank 0 has asked for all that it is refused meanwhile.
    env = environment(emulator(flavour))
    with contextlib.ExitStack() as stack:
        ranks = [Process(programs.non_blocking, (0, 3, ""), env)]
        stack.callback(ranks[0].process.kill)
        unique_id = ranks[0].line()
        assert ranks[0].line() == "started"
        for number in (1, 2):
            ranks.append(Process(programs.non_blocking, (number, 3, unique_id), env))
            stack.callback(ranks[-1].process.kill)
        assert [rank.end() for rank in ranks] == ["", "", ""]


@FLAVOURS
def test_an_init_that_cannot_end_is_aborted(in_child: InChild, flavour: Flavour) -> None:
    in_child(programs.never_complete, 0, 2, "", flavour=flavour)


@FLAVOURS
def test_split(flavour: Flavour) -> None:
    all_fine(programs.splits, 4, flavour=flavour)


def test_registered_memory() -> None:
    all_fine(programs.registered, 2)


@FLAVOURS
def test_ranks_as_threads(in_child: InChild, flavour: Flavour) -> None:
    in_child(programs.threads, 3, flavour=flavour)


@FLAVOURS
def test_a_rank_that_is_killed_is_named(flavour: Flavour) -> None:
    with world(failures.witness, 4, flavour=flavour) as ranks:
        for rank in ranks:
            assert rank.line() == "ready"
        ranks[3].process.kill()
        for rank in ranks[:3]:
            said = rank.line()
            assert said.startswith("slurmmesh EMULATOR: rank 3 of 4 (process ")
            assert said.endswith("has died during AllReduce")
            assert not rank.end()


@FLAVOURS
def test_survivors_shrink_and_grow_again(flavour: Flavour) -> None:
    with world(failures.survivor, 3, flavour=flavour) as ranks:
        for rank in ranks:
            assert rank.line() == "ready"
        ranks[2].process.kill()
        joiner = Process(failures.joiner, (3, ranks[0].line()), environment(emulator(flavour)))
        try:
            assert not joiner.end()
        finally:
            joiner.process.kill()
        for rank in ranks[:2]:
            assert rank.line() == "went on"
            assert not rank.end()


@FLAVOURS
def test_a_silent_death_hangs_until_abort(flavour: Flavour) -> None:
    with world(failures.hanging, 3, flavour=flavour, silent=1) as ranks:
        for rank in ranks:
            assert rank.line() == "ready"
        ranks[2].process.kill()
        ranks[2].process.wait()
        for rank in ranks[:2]:
            rank.tell("killed")
        for rank in ranks[:2]:
            assert not rank.end()


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("abort", "6 slurmmesh EMULATOR: rank 2 of 3"),
        ("leave", "6 slurmmesh EMULATOR: rank 2 of 3"),
        ("disagree", "5 slurmmesh EMULATOR: ranks disagree: rank 0 is in AllReduce"),
    ],
)
def test_ranks_that_do_not_take_part(how: str, said: str) -> None:
    with world(failures.deserted, 3, told=how) as ranks:
        assert ranks[0].line().startswith(said)
        for rank in ranks if how == "disagree" else ranks[:2]:
            rank.tell("over")
        assert [rank.end() for rank in ranks] == ["", "", ""]


@FLAVOURS
def test_revoke_ends_what_runs_and_split_goes_on(flavour: Flavour) -> None:
    all_fine(failures.revoked, 3, flavour=flavour)


@FLAVOURS
def test_communicators_leave_nothing_behind(in_child: InChild, flavour: Flavour) -> None:
    in_child(programs.cycles, 50, flavour=flavour)


def test_an_old_rccl_has_fewer_calls(in_child: InChild) -> None:
    in_child(programs.old, flavour="old")


def test_the_killed_leave_no_shared_memory() -> None:
    """Ranks that are killed while others wait for them, and the others after them."""
    with world(failures.witness, 2) as ranks:
        for rank in ranks:
            assert rank.line() == "ready"
    assert not [name for name in os.listdir("/dev/shm") if "emulator" in name]

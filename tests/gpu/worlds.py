"""The ranks of a test: all are started, and all end, whatever happens."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.gpu.running import Gpu, Started


@contextlib.contextmanager
def world(
    gpu: Gpu, folder: Path, program: Callable[..., Any], size: int, *arguments: Any, **how: Any
) -> Iterator[list[Started]]:
    ranks: list[Started] = []
    try:
        for rank in range(size):
            ranks.append(gpu.start(program, str(folder), rank, size, *arguments, **how))
        yield ranks
    except BaseException:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.kill()
            with contextlib.suppress(ValueError):  # it was asked for its end before
                rank.end()
        raise


def run(
    gpu: Gpu, folder: Path, program: Callable[..., Any], size: int, *arguments: Any, **how: Any
) -> list[Any]:
    with world(gpu, folder, program, size, *arguments, **how) as ranks:
        ends = [rank.end() for rank in ranks]
        failed = [f"rank {i}: {code}\n{text}" for i, (code, _, text) in enumerate(ends) if code]
        assert not failed, "\n".join(failed)
    return [answer for _, answer, _ in ends]


def pids(folder: Path, size: int, wait_until: Callable[..., None]) -> list[int]:
    files = [folder / f"ready-{rank}" for rank in range(size)]
    wait_until(lambda: all(file.exists() for file in files))
    return [pickle.loads(file.read_bytes()) for file in files]


def go(folder: Path, name: str = "go") -> None:
    """The ranks ``hear`` it from rank -1."""
    unfinished = folder / f"{name}.unfinished"
    unfinished.write_bytes(pickle.dumps(None))
    unfinished.rename(folder / f"{name}--1")

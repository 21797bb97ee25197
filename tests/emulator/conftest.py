"""Programs of these tests run in child processes: a process loads GPU libraries once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.emulator.build import Flavour, emulator, environment

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def in_child() -> Callable[..., str]:
    """``in_child(program, *arguments, flavour="plain", **settings)``: what the program printed.

    The program is a function of a module of tests.emulator that imports nothing heavy; the
    arguments are whatever ``repr`` writes down. The test fails with its error if it fails.
    """

    def run(
        program: Callable[..., Any], *arguments: Any, flavour: Flavour = "plain", **settings: Any
    ) -> str:
        done = subprocess.run(
            command(program, *arguments),
            cwd=ROOT,
            env=environment(emulator(flavour), **settings),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr or f"ended with {done.returncode}"
        return done.stdout

    return run


def command(program: Callable[..., Any], *arguments: Any) -> list[str]:
    """The command that calls a program in a Python of its own."""
    call = f"from {program.__module__} import {program.__name__} as program; program(*{arguments})"
    return [sys.executable, "-S", "-c", call]

"""How an error ends a program: what is printed, and the exit code (``docs/exit-codes.md``)."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn

from slurmmesh.errors import (
    EXIT_INTERRUPTED,
    EXIT_PROGRAM_FAILED,
    MissingDependencyError,
    SetupError,
    SlurmmeshError,
    SubmitError,
    UsageError,
)

if TYPE_CHECKING:
    from slurmmesh.actors.supervising import MeshFailure

LATEST_S = 30.0
"""How long the end of a program at a fault may take, in seconds."""
_PLAIN = (UsageError, SetupError, SubmitError, MissingDependencyError)
"""Errors whose text says all: a traceback would only hide it."""


def explain(error: BaseException) -> int:
    """Say on stderr what went wrong; returns the exit code."""
    if isinstance(error, _PLAIN):
        print(f"slurmmesh: error: {error}", file=sys.stderr)
    else:
        traceback.print_exception(type(error), error, error.__traceback__)
    return error.exit_code if isinstance(error, SlurmmeshError) else EXIT_PROGRAM_FAILED


def explain_errors() -> None:
    """From here on an error of slurmmesh that nobody catches ends this program as under ``submit``.

    That is: with the exit code of ``docs/exit-codes.md`` and, where the text says all, without a
    traceback; Ctrl-C likewise. All other errors end it as before. An interactive session is left
    alone.
    """
    if not hasattr(sys, "ps1") and not sys.flags.interactive and sys.excepthook is not _hook:
        global _before
        _before = sys.excepthook
        sys.excepthook = _hook


def unhandled_fault_hook(failure: MeshFailure) -> None:
    """What becomes of a failure that no actor dealt with, and of which no call told the program.

    It prints ``failure.report()`` to stderr and ends the program, with all of its job, with exit
    code 1. A program may put a function of its own in its place: ``slurmmesh.unhandled_fault_hook
    = function``; that runs in a thread of its own. If it returns, the matter is dealt with; if it
    raises, the program ends all the same, by ``sys.exit(code)`` with that code.
    """
    from slurmmesh.wire.reactor import say  # here: the start of a program need not wait for it

    say(f"slurmmesh: nobody dealt with this: {failure.report()}")
    end_program(EXIT_PROGRAM_FAILED)


def end_program(code: int) -> NoReturn:
    """End this program and its job, from any thread, without waiting for the main thread.

    What is registered with ``atexit`` may take ``LATEST_S`` and no longer.
    """
    latest = threading.Timer(LATEST_S, os._exit, (code,))
    latest.daemon = True
    latest.start()
    for last in at_fault:
        last(code)
    atexit._run_exitfuncs()  # the jobs end, and what the program has registered
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(code)


at_fault: list[Callable[[int], object]] = []
"""Run with the exit code before a fault ends the program."""

_before = sys.excepthook


def _hook(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    if isinstance(error, KeyboardInterrupt):
        print("slurmmesh: interrupted", file=sys.stderr)
        raise SystemExit(EXIT_INTERRUPTED)
    if not isinstance(error, SlurmmeshError):
        _before(kind, error, where)
        return
    # The interpreter ends with the code of a SystemExit that comes out of its hook.
    raise SystemExit(explain(error))

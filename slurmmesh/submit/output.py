"""Standard output, which may be closed, full, or read by nobody any more."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from slurmmesh.errors import SetupError

EXIT_READER_GONE = 128 + signal.SIGPIPE
Follow = Callable[[Path, Callable[[], bool]], None]


class OutputError(SetupError):
    """Standard output takes no more. ``exit_code`` is 141 where its reader is gone, as of SIGPIPE.

    Made where it is noticed: from then on standard output leads nowhere, so that Python's own
    flush at the end does not fail as well.
    """

    def __init__(self, error: OSError) -> None:
        super().__init__(f"standard output cannot be written: {error.strerror or error}")
        if isinstance(error, BrokenPipeError):
            self.exit_code = EXIT_READER_GONE
        _drop_the_rest()


def _drop_the_rest() -> None:
    if sys.stdout is not None:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        os.close(devnull)


def write(text: str) -> None:
    """To stdout, with the bytes of file names as they are, whatever the locale.

    Raises:
        OutputError: it cannot be written.
    """
    write_bytes(os.fsencode(text))


def write_bytes(data: bytes) -> None:
    """To stdout, as it is. Raises as ``write`` does."""
    try:
        if sys.stdout is None:  # Python found it closed
            raise OSError(errno.EBADF, "it is closed")
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except OSError as error:
        raise OutputError(error) from None


def tell(text: str) -> None:
    """A line to stderr, if there is one that takes it."""
    if sys.stderr is not None:  # else "print" would take stdout
        # RuntimeError: called by a signal's handler while another line is on its way.
        with contextlib.suppress(OSError, RuntimeError):
            print(f"slurmmesh: {text}", file=sys.stderr, flush=True)


def follower(on_stderr: bool) -> Follow:
    """A function that shows a job folder until the function it gets returns true.

    It returns early, having said so, if it can show no more. It raises OutputError if the reader
    is gone.
    """

    def follow(folder: Path, is_done: Callable[[], bool]) -> None:
        from rich.console import Console

        from slurmmesh.telemetry.view import follow as show

        class OurConsole(Console):
            def on_broken_pipe(self) -> NoReturn:
                raise BrokenPipeError  # rich would end the program

        try:
            show(folder, is_done, OurConsole(stderr=on_stderr))
        except BrokenPipeError as error:
            raise OutputError(error) from None
        except OSError as error:
            _drop_the_rest()
            tell(f"the job goes on, but can be shown no more: {error}")

    return follow

"""What all front doors have in common: the command line, errors, the exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from slurmmesh.errors import EXIT_INTERRUPTED, SlurmmeshError, UsageError
from slurmmesh.submit.output import EXIT_READER_GONE, OutputError, tell


class Parser(argparse.ArgumentParser):
    """Takes options by their whole names only; a command line that makes no sense is UsageError."""

    def __init__(self, **how: Any) -> None:
        super().__init__(allow_abbrev=False, **how)

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help tells all")


def run(command: Callable[[Sequence[str]], int], argv: Sequence[str]) -> int:
    """Run a command; returns its exit code (``docs/exit-codes.md``)."""
    try:
        return command(argv)
    except OutputError as error:
        if error.exit_code != EXIT_READER_GONE:
            tell(f"error: {error}")
        return error.exit_code
    except SlurmmeshError as error:
        tell(f"error: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED

"""What the commands on jobs have in common: arguments, errors, the exit code."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NoReturn

from slurmmesh.config import Settings, load_settings
from slurmmesh.errors import EXIT_INTERRUPTED, SlurmmeshError, UsageError
from slurmmesh.slurm.states import JobState, parse_state
from slurmmesh.submit.output import EXIT_READER_GONE, OutputError, tell


class Parser(argparse.ArgumentParser):
    """Raises UsageError for a command line that makes no sense."""

    def __init__(self, name: str, description: str, epilog: str = "") -> None:
        super().__init__(
            prog=f"slurmmesh {name}", description=description, epilog=epilog, allow_abbrev=False
        )
        self.add_argument(
            "--root", metavar="DIR", help="the folder of the job folders (as the settings say)"
        )

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; {self.prog} --help tells all")


def settings_of(asked: argparse.Namespace) -> tuple[Settings, Path]:
    """The settings, and the folder of the job folders.

    Raises:
        ConfigError: a setting is wrong.
    """
    settings = load_settings()
    return settings, Path(os.path.abspath(asked.root)) if asked.root else settings.job_root


def states_of(words: Sequence[str] | None) -> frozenset[JobState]:
    """Raises UsageError for a word that is no state."""
    states = set()
    for word in ",".join(words or ()).split(","):
        state = parse_state(word)
        if word and state is JobState.UNKNOWN and word.upper() != "UNKNOWN":
            raise UsageError(
                f"--state {word!r} is no state: {', '.join(state.value for state in JobState)}"
            )
        if word:
            states.add(state)
    return frozenset(states)


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

"""What the commands on jobs have in common: their arguments."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from slurmmesh.config import Settings, load_settings
from slurmmesh.errors import UsageError
from slurmmesh.slurm.states import JobState, parse_state
from slurmmesh.submit.door import Parser


def parser_of(name: str, description: str) -> Parser:
    """For the command ``slurmmesh NAME``; has the option that all of them have."""
    parser = Parser(
        prog=f"slurmmesh {name}", description=description, epilog="All about it: docs/jobs.md"
    )
    parser.add_argument(
        "--root", metavar="DIR", help="the folder of the job folders (as the settings say)"
    )
    return parser


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

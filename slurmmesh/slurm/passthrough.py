"""Options of sbatch that slurmmesh does not know and hands on as they are."""

from __future__ import annotations

import re

from slurmmesh.errors import UsageError
from slurmmesh.slurm.options import OPTIONS
from slurmmesh.slurm.quoting import directive_value

_LONG = re.compile(r"--([A-Za-z][A-Za-z0-9-]*)(?:(?:=|\s+)(.*))?", re.DOTALL)
_SHORT = re.compile(r"-([A-Za-z])\s*(.*)", re.DOTALL)

_OURS = "slurmmesh sets it itself"
# Why an option cannot be handed on: it has a flag of its own, or the job would not work.
_REFUSED = {
    **{option.name: f"use --{option.name}" for option in OPTIONS.values()},
    "ntasks-per-node": "slurmmesh starts one host a node and the processes in it",
    "wrap": "the job runs SCRIPT",
    "wait": "use --wait of slurmmesh.submit, before SCRIPT",
    "parsable": "use --parsable of slurmmesh.submit",
    "test-only": "use --test-only of slurmmesh.submit",
    "no-kill": _OURS,
    "no-requeue": "use --no-requeue",
    "hetjob": "put a : between the components",
    "help": "it submits nothing",
    "usage": "it submits nothing",
    "version": "it submits nothing",
}
_LONG_OF_SHORT = {
    **{option.short: option.name for option in OPTIONS.values() if option.short},
    "W": "wait",
    "k": "no-kill",
    "h": "help",
    "V": "version",
}
# Options of their own whose names begin a refused one; any other beginning is an abbreviation.
_NOT_ABBREVIATED = {"gpus"}


def directive_of(text: str) -> str:
    """The ``#SBATCH`` text of one option as a user gives it: ``--account=x``, ``-A x``, ``-H``.

    Everything after the name is the value, as it is; quotes are the user's own characters.

    Raises:
        UsageError: no option, or one that slurmmesh must set itself.
    """
    text = text.strip()
    if match := _LONG.fullmatch(text):
        name, value = match.groups()
        _refuse(text, _refused_name(name))
        option = f"--{name}"
        return option if value is None else f"{option}={directive_value(value, option)}"
    if match := _SHORT.fullmatch(text):
        name, value = match.groups()
        _refuse(text, _LONG_OF_SHORT.get(name))
        option = f"-{name}"
        return f"{option} {directive_value(value, option)}" if value else option
    raise UsageError(
        f"--sbatch {text!r} is no option of sbatch: write it as --sbatch=--gpu-bind=closest"
    )


def _refused_name(name: str) -> str | None:
    """The refused option that ``name`` is, or abbreviates as getopt allows."""
    if name in _REFUSED:
        return name
    if name in _NOT_ABBREVIATED:
        return None
    return next((refused for refused in _REFUSED if refused.startswith(name)), None)


def _refuse(text: str, refused: str | None) -> None:
    if refused in _REFUSED:
        raise UsageError(
            f"--sbatch {text!r} cannot be handed on (--{refused}): {_REFUSED[refused]}"
        )

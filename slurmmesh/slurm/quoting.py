"""Values into a batch script: as shell words, and as values of ``#SBATCH`` lines.

Nothing a user gives may add a command or a directive, and all of it must arrive unharmed.
"""

from __future__ import annotations

import re
import shlex

from slurmmesh.errors import UsageError

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./-]+", re.ASCII)


def has_control_characters(value: str) -> bool:
    """Whether a value holds a newline or the like, which no ``#SBATCH`` line can carry."""
    return _CONTROL.search(value) is not None


def without_control_characters(value: str, instead: str) -> str:
    """A value with ``instead`` for each newline or the like, to be shown on one line."""
    return _CONTROL.sub(instead, value)


def sh(value: object) -> str:
    """One word for bash, always on one line: a newline becomes ``$'\\n'``."""
    text = str(value)
    if not has_control_characters(text):
        return shlex.quote(text)
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return "$'" + _CONTROL.sub(lambda match: _escape(match[0]), escaped) + "'"


def _escape(character: str) -> str:
    return {"\n": "\\n", "\t": "\\t"}.get(character, f"\\x{ord(character):02x}")


def directive_value(value: object, option: str) -> str:
    """The value of an option in an ``#SBATCH`` line.

    sbatch takes a backslash for an escape in either kind of quotes, and ``#`` outside of quotes
    for the start of a comment.

    Raises:
        UsageError: the value is empty or has control characters. ``option`` names it.
    """
    text = str(value)
    if not text:
        raise UsageError(f"{option} is empty")
    if has_control_characters(text):
        raise UsageError(
            f"{option}: {text!r} has a newline or another control character, which an #SBATCH "
            "line cannot carry; leave it out"
        )
    if _PLAIN.fullmatch(text):
        return text
    if "'" not in text and "\\" not in text:
        return f"'{text}'"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def output_pattern(folder: object, of_array: bool = False) -> str:
    """Where Slurm writes the output of a job: a file in ``folder`` that is called by its id.

    Raises:
        UsageError: the folder's name has a backslash, which turns Slurm's patterns off.
    """
    text = str(folder)
    if "\\" in text:
        raise UsageError(
            f"Slurm cannot write into {text!r}, because of the backslash: "
            "set SLURMMESH_JOB_ROOT to another folder"
        )
    return literal_pattern(text) + ("/%A_%a.out" if of_array else "/%j.out")


def literal_pattern(path: object) -> str:
    """A path as part of a file name pattern of sbatch or srun that stands for itself."""
    return str(path).replace("%", "%%")

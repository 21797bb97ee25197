"""Tables of Slurm's commands that nothing in a cell, and nothing around the table, can upset.

A job's name can hold any character, newlines and separators too, and sites print banners around
what their commands say. So each cell is followed by a mark that is drawn anew for each question.
The first column is shown twice: what stands before the table lands in the first of the two, which
is thrown away. The header is the proof that the command kept to the form asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def new_mark() -> str:
    """Characters that occur in no answer but where they were asked for."""
    return f"~{os.urandom(6).hex()}~"


def squeue_format(columns: Sequence[str], mark: str) -> str:
    """For ``squeue --Format``."""
    return ",".join(f"{column}:{mark}" for column in (columns[0], *columns))


def sacct_options(columns: Sequence[str], mark: str) -> list[str]:
    """For sacct."""
    return ["--parsable", f"--delimiter={mark}", f"--format={','.join((columns[0], *columns))}"]


def rows(text: str, columns: Sequence[str], mark: str) -> list[dict[str, str]] | None:
    """The cells of each row, by column; None if the answer is no such table."""
    cells = text.split(mark)
    width = len(columns) + 1
    if len(cells) <= width:
        return None
    starts = range(width, len(cells) - width, width)
    return [dict(zip(columns, cells[start + 1 :], strict=False)) for start in starts]

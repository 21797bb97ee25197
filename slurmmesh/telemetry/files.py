"""Writes the files of a report, whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from slurmmesh import files
from slurmmesh.errors import ReportError


def make_folder(folder: Path) -> None:
    """Make a folder and its parents, if it is not there.

    Raises:
        ReportError: it cannot be made, or is no folder.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ReportError(
            f"cannot make the folder {folder}: {error.strerror}. Give another one"
        ) from error


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that a reader finds the old content or the new, nothing between.

    Raises:
        ReportError: the folder cannot be written to, or the disk is full.
    """
    with _replacing(path) as file:
        file.write(content)


def copy_whole(source: Path, path: Path) -> None:
    """Copy a file as :func:`write_whole` writes one; nothing to do if both are the same file.

    Raises:
        ReportError: as there, or the source cannot be read.
    """
    if path.exists() and os.path.samefile(source, path):
        return
    with _replacing(path) as file, open(source, "rb") as original:
        shutil.copyfileobj(original, file)


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    try:
        with files.replacing(path) as file:
            yield file
    except OSError as error:
        raise ReportError(f"cannot write {path}: {error.strerror or error}") from error

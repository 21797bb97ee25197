"""Files that a reader finds old or new, whole."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from slurmmesh.files import replacing, write_whole


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, b"old")
    with replacing(path) as file:
        file.write(b"new")
        assert path.read_bytes() == b"old"
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_what_was_not_finished_leaves_the_old_file(
    tmp_path: Path, error: type[BaseException]
) -> None:
    def write_half() -> None:
        with replacing(tmp_path / "file") as file:
            file.write(b"new")
            raise error

    write_whole(tmp_path / "file", b"old")
    with pytest.raises(error):
        write_half()
    assert (tmp_path / "file").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["file"]


def test_a_link_is_replaced_not_followed(tmp_path: Path) -> None:
    (tmp_path / "file").symlink_to("/dev/full")
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "file").read_bytes() == b"new"


def test_modes_are_what_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_whole(tmp_path / "open", b"")
        write_whole(tmp_path / "private", b"", 0o600)
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert modes == {"open": 0o640, "private": 0o600}


def test_a_folder_that_is_gone_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "gone" / "file", b"")

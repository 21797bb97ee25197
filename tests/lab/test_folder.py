from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurmmesh.errors import LabError, UsageError
from slurmmesh.lab import folder
from slurmmesh.lab.folder import MAX_ROOT_BYTES, make_root, remove_root

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting needs root")


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a short path: pytest's own are too long for a lab."""
    path = Path(tempfile.mkdtemp())
    yield path
    shutil.rmtree(path)


def make(environ: dict[str, str], directory: str | None = None) -> Path:
    layout, temporary = make_root(directory, accounting=False, environ=environ)
    assert temporary is (directory is None)
    try:
        assert layout.root.stat().st_mode & 0o777 == 0o700
        assert all(each.is_dir() for each in layout.folders)
    finally:
        shutil.rmtree(layout.root)
    return layout.root


def test_tmpdir_is_taken_first(short: Path) -> None:
    assert make({"TMPDIR": str(short)}).parent == short


def test_without_tmpdir_it_is_tmp() -> None:
    assert make({}).parent == Path("/tmp")


def test_a_tmpdir_that_will_not_do_is_passed_over(short: Path) -> None:
    long = short / ("l" * MAX_ROOT_BYTES)
    long.mkdir()
    (short / "a b").mkdir()
    for unfit in (short / "missing", long, short / "a b", short / "a,b", short / "%n"):
        assert make({"TMPDIR": str(unfit)}).parent == Path("/tmp")


@needs_root
@pytest.mark.parametrize("options", ["size=1M", "size=64M,nr_inodes=1", "ro", "noexec"])
def test_a_full_or_forbidding_tmpdir_is_passed_over(short: Path, options: str) -> None:
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", short], check=True)
    try:
        assert make({"TMPDIR": str(short)}).parent == Path("/tmp")
    finally:
        subprocess.run(["umount", short], check=True)


def test_no_place_at_all_is_one_error_with_every_reason(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nowhere = str(short / "missing")
    monkeypatch.setattr(folder, "_bases", lambda environ: [nowhere, "/a b"])
    with pytest.raises(LabError) as caught:
        make_root(None, accounting=False, environ={})
    assert f"{nowhere}: it is not there" in str(caught.value)
    assert "/a b: its path has characters" in str(caught.value)
    assert "set TMPDIR" in str(caught.value)


def test_a_given_folder_is_made_or_may_be_empty(short: Path) -> None:
    assert make({}, str(short / "new" / "lab")) == short / "new" / "lab"
    (short / "empty").mkdir(mode=0o700)
    assert make({}, str(short / "empty")) == short / "empty"


def test_a_given_folder_that_will_not_do_is_refused(short: Path) -> None:
    (short / "full").mkdir()
    (short / "full" / "thesis.tex").touch()
    for directory, reason in [
        (short / "full", "not empty"),
        (short / ("l" * MAX_ROOT_BYTES), "too long"),
        (short / "a b", "characters"),
        (Path("/proc/lab"), "/proc/lab: "),
    ]:
        with pytest.raises(UsageError, match=reason):
            make_root(str(directory), accounting=False, environ={})
    assert (short / "full" / "thesis.tex").exists()


def test_a_given_folder_keeps_its_logs_and_loses_its_secrets(short: Path) -> None:
    layout, temporary = make_root(str(short), accounting=False, environ={})
    layout.munge_key.write_text("secret")
    layout.conf.write_text("ClusterName=lab")
    (layout.log / "slurmctld.log").write_text("started")
    (layout.run / "gpu0").symlink_to("/dev/null")
    remove_root(layout, temporary=temporary)
    left = sorted(str(path.relative_to(short)) for path in short.rglob("*"))
    assert left == ["etc", "etc/slurm.conf", "log", "log/slurmctld.log"]

"""Job folders: attempts, what is kept of a submit, and the user's index."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh import folders


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "slurmmesh" / "jobs"


def age(link: Path) -> None:
    """Let a link be two days old."""
    when = time.time() - 2 * 86400
    os.utime(link, (when, when), follow_symlinks=False)


def submitted(root: Path, job_id: str) -> Path:
    folder = folders.job_folder(root, job_id)
    folders.keep_submission(folder, {"id": job_id, "name": "ä"}, "#!/bin/bash\n\udcff\n")
    return folder


@given(st.sets(st.integers(0, 10**6), min_size=1, max_size=5))
def test_attempts_are_in_the_order_of_their_numbers(
    tmp_path_factory: pytest.TempPathFactory, numbers: set[int]
) -> None:
    folder = tmp_path_factory.mktemp("job")
    for number in numbers:
        folders.attempt_folder(folder, number).mkdir()
    (folder / "attempt-1.before-3").mkdir()
    (folder / "attempt-x").mkdir()
    found = folders.attempts(folder)
    assert found == [folder / f"attempt-{number}" for number in sorted(numbers)]
    assert folders.latest_attempt(folder) == found[-1]
    assert folders.job_of(found[0]) == folder


def test_a_folder_without_attempts_is_its_own(tmp_path: Path) -> None:
    assert folders.attempts(tmp_path) == [tmp_path]
    assert folders.latest_attempt(tmp_path / "missing") == tmp_path / "missing"
    assert folders.job_of(tmp_path) == tmp_path


def test_what_was_submitted_is_kept_from_others(tmp_path: Path, index: Path) -> None:
    folder = submitted(tmp_path / "root", "12")
    assert folders.submission(folder) == {"id": "12", "name": "ä"}
    assert (folder / folders.SCRIPT).read_bytes() == b"#!/bin/bash\n\xff\n"
    assert sorted(os.listdir(folder)) == ["script.sh", "submit.json"]
    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert (folder.stat().st_mode & 0o777, modes) == (0o700, {0o600})


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"{", b"[" * 100_000])
def test_a_submission_that_cannot_be_read_is_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / folders.SUBMITTED).write_bytes(content)
    assert folders.submission(tmp_path) == {}


def test_jobs_are_found_in_the_root_and_in_the_index(tmp_path: Path, index: Path) -> None:
    one, two = submitted(tmp_path / "a", "1"), submitted(tmp_path / "b", "2")
    assert folders.find("1", tmp_path / "a") == one
    assert folders.find("2", tmp_path / "a") == two
    assert folders.find("3", tmp_path / "a") is None
    (tmp_path / "a" / "2.before-17").mkdir()
    (tmp_path / "a" / "other").mkdir()
    assert sorted(folders.known(tmp_path / "a")) == [one, two]


@pytest.mark.parametrize("job_id", ["", "..", "../a", "1/2", "12;x", "12\n", "/etc"])
def test_what_is_no_id_is_looked_for_nowhere(tmp_path: Path, index: Path, job_id: str) -> None:
    assert folders.find(job_id, tmp_path) is None


def test_the_newest_job_of_an_id_is_the_one_in_the_index(tmp_path: Path, index: Path) -> None:
    submitted(tmp_path / "a", "1")
    newer = submitted(tmp_path / "b", "1")
    assert folders.find("1", tmp_path / "c") == newer
    assert os.listdir(index) == ["1"]


def test_the_index_forgets_what_is_gone(tmp_path: Path, index: Path) -> None:
    gone, away = submitted(tmp_path / "a", "1"), submitted(tmp_path / "b" / "mounted", "2")
    for path in [*gone.iterdir(), *away.iterdir()]:
        path.unlink()
    gone.rmdir()
    away.rmdir()
    away.parent.rmdir()  # as a file system that is not mounted now
    age(index / "1")
    age(index / "2")
    assert folders.known(tmp_path / "a") == []
    assert os.listdir(index) == ["2"]


def test_the_index_keeps_a_job_that_a_file_system_shows_late(tmp_path: Path, index: Path) -> None:
    """A double, since no network file system is here: the folder is not there yet."""
    (tmp_path / "a").mkdir()
    folders.remember(tmp_path / "a" / "1")
    assert folders.known(tmp_path / "a") == []
    assert os.listdir(index) == ["1"]


def test_what_never_got_its_name_is_swept(tmp_path: Path, index: Path) -> None:
    folder = submitted(tmp_path / "a", "1")
    for name in (".new-old", ".new-young", ".other"):
        (index / name).symlink_to(folder)
    age(index / ".new-old")
    age(index / ".other")
    assert folders.known(tmp_path / "a") == [folder]
    assert sorted(os.listdir(index)) == [".new-young", ".other", "1"]


@pytest.mark.parametrize("through", ["root", "index"])
def test_a_job_is_known_once_by_any_way(tmp_path: Path, index: Path, through: str) -> None:
    submitted(tmp_path / "a", "1")
    (tmp_path / "link").symlink_to("a")
    if through == "index":
        folders.remember(tmp_path / "link" / "1")
    assert len(folders.known(tmp_path / ("link" if through == "root" else "a"))) == 1


def test_ids_tell_what_kind_of_job_it_is(tmp_path: Path, index: Path) -> None:
    job_id, _ = folders.make_local_folder(tmp_path)
    assert (folders.is_local_id(job_id), folders.maker_of(job_id)) == (True, os.getpid())
    for other in ("12", "12_3", "local-", "local-x", "local-1-٣"):
        assert folders.maker_of(other) is None
    kinds = {"12": True, "12_3": True, "local-x": True, "12.before-3": False, "x": False}
    assert {name: folders.is_job_id(name) for name in kinds} == kinds


@pytest.mark.parametrize("state", ["", "relative", "/proc/nowhere"])
def test_without_an_index_the_root_still_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", state)
    monkeypatch.setenv("HOME", "/proc/nowhere")
    folder = submitted(tmp_path, "1")
    assert folders.known(tmp_path) == [folder]
    assert folders.find("1", tmp_path) == folder


def test_a_local_job_is_in_the_index(tmp_path: Path, index: Path) -> None:
    job_id, folder = folders.make_local_folder(tmp_path / "root")
    assert folders.find(job_id, tmp_path) == folder
    assert folder.stat().st_mode & 0o777 == 0o700


def test_what_somebody_else_put_into_the_index_is_no_job(tmp_path: Path, index: Path) -> None:
    index.mkdir(parents=True)
    for name, target in (("1", "."), ("2", "2"), ("3", "/proc/self"), ("4", str(tmp_path))):
        (index / name).symlink_to(target)
    (index / "5").mkdir()
    (index / "6").write_text("")
    assert folders.known(tmp_path / "jobs") == []
    assert [folders.find(name, tmp_path / "jobs") for name in "123456"] == [None] * 6

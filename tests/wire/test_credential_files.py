"""How credentials lie on disk, and which files are not believed."""

from __future__ import annotations

import os
import stat

import pytest

from slurmmesh.errors import IdentityError
from slurmmesh.wire.identity import Credentials, JobAuthority

JOB = JobAuthority("1234")
CONTROLLER = JOB.issue("controller")
HOST = JOB.issue("host-3")


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "identity"


def mode(path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(params=[0o022, 0o000, 0o777], ids=["usual", "open", "closed"])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


@pytest.mark.usefixtures("umask")
def test_what_is_written_is_read_and_private(folder):
    if os.umask(0o077) == 0o777:
        folder.mkdir(mode=0o700)  # such a umask closes a new folder to its owner too
    path = HOST.write(folder)
    CONTROLLER.write(folder)
    assert path == folder / "host-3.pem"
    assert mode(folder) == 0o700
    assert {p.name: mode(p) for p in folder.iterdir()} == {
        "ca.pem": 0o600,
        "host-3.pem": 0o600,
        "controller.pem": 0o600,
    }
    assert Credentials.read(folder, "host-3") == HOST
    assert Credentials.read(folder, "controller") == CONTROLLER


def test_writing_again_replaces(folder):
    HOST.write(folder)
    other = JOB.issue("host-3")
    other.write(folder)
    assert Credentials.read(folder, "host-3") == other
    assert len(list(folder.iterdir())) == 2


@pytest.mark.parametrize("bits", [0o710, 0o704, 0o750, 0o707])
def test_a_folder_open_to_others_is_refused(folder, bits):
    HOST.write(folder)
    folder.chmod(bits)
    with pytest.raises(IdentityError, match="open to other users"):
        Credentials.read(folder, "host-3")
    with pytest.raises(IdentityError, match="open to other users"):
        HOST.write(folder)


@pytest.mark.parametrize("name", ["host-3.pem", "ca.pem"])
@pytest.mark.parametrize("bits", [0o640, 0o604, 0o660])
def test_a_file_open_to_others_is_refused(folder, name, bits):
    HOST.write(folder)
    (folder / name).chmod(bits)
    with pytest.raises(IdentityError, match=f"{name} is open to other users"):
        Credentials.read(folder, "host-3")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_refused(folder):
    HOST.write(folder)
    os.chown(folder / "host-3.pem", 12345, -1)
    with pytest.raises(IdentityError, match="belongs to uid 12345"):
        Credentials.read(folder, "host-3")
    os.chown(folder, 12345, -1)
    with pytest.raises(IdentityError, match="belongs to uid 12345"):
        HOST.write(folder)


def test_links_and_other_things_are_refused(folder, tmp_path):
    HOST.write(folder)
    real = tmp_path / "real.pem"
    (folder / "host-3.pem").rename(real)
    (folder / "host-3.pem").symlink_to(real)
    with pytest.raises(IdentityError, match=r"host-3\.pem cannot be read"):
        Credentials.read(folder, "host-3")
    (folder / "host-3.pem").unlink()
    os.mkfifo(folder / "host-3.pem", 0o600)
    with pytest.raises(IdentityError, match="no regular file"):
        Credentials.read(folder, "host-3")
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(IdentityError, match="holds no credentials"):
        Credentials.read(tmp_path / "link", "host-3")
    with pytest.raises(IdentityError, match="holds no credentials"):
        HOST.write(tmp_path / "link")


def test_missing_empty_and_huge_files_are_refused(folder):
    with pytest.raises(IdentityError, match="holds no credentials"):
        Credentials.read(folder, "host-3")
    HOST.write(folder)
    with pytest.raises(IdentityError, match=r"host-4\.pem cannot be read"):
        Credentials.read(folder, "host-4")
    for content, says in ((b"", "empty"), (b"x" * 100_000, "too large")):
        (folder / "host-3.pem").write_bytes(content)
        with pytest.raises(IdentityError, match=says):
            Credentials.read(folder, "host-3")


def test_a_write_that_fails_leaves_no_half_file(folder, monkeypatch):
    HOST.write(folder)

    def full(_fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        JOB.issue("host-3").write(folder)
    assert sorted(p.name for p in folder.iterdir()) == ["ca.pem", "host-3.pem"]
    assert Credentials.read(folder, "host-3") == HOST

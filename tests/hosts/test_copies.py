"""Folders of code read and copied, with nothing between: real files, links, modes, ends."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from slurmmesh.errors import WorkspaceError
from slurmmesh.hosts import copies as copies_module
from slurmmesh.hosts.copies import Copies, PrivateFolder
from slurmmesh.hosts.folder import read_folder, read_pieces
from slurmmesh.hosts.manifest import Entry, Piece, new_hash, plan, sizes_of


def put(folder: Path, **files: str) -> None:
    for name, text in files.items():
        path = folder / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def send(copies: Copies, source: Path, limit: int = 1 << 20, **rules) -> Path:
    """A whole sync in one process, in the steps of the real one."""
    listing = read_folder(str(source), max_bytes=rules.pop("max_bytes", 1 << 30), **rules)
    lacking = copies.offer(str(source), listing.manifest)
    for _, pieces in plan({0: lacking}, sizes_of(listing.manifest), limit):
        for piece, content in zip(pieces, read_pieces(listing, pieces), strict=True):
            copies.take(piece, content)
    return Path(copies.commit(str(source)))


def names_in(folder: Path) -> set[str]:
    tree = folder.resolve()
    return {str(path.relative_to(tree)) for path in tree.rglob("*")}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def copies(tmp_path: Path) -> Copies:
    (tmp_path / "node").mkdir()
    return Copies(str(tmp_path / "node"))


# ------------------------------------------------------------------ what is read


def test_what_is_no_code_is_left_out(source, copies):
    put(source, a="1", pkg__b="2", env__lib="3", jobs__log="4")
    (source / "env" / "pyvenv.cfg").touch()
    for name in (".git", "__pycache__", ".venv"):
        put(source / "pkg" / name, x="5")
    (source / ".gitignore").write_text("*.bin\n")
    (source / "pkg" / ".gitignore").write_text("!keep.bin\n")
    for name in ("a.bin", "pkg/keep.bin"):
        (source / name).touch()
    copy = send(copies, source, private=[str(source / "jobs")])
    assert names_in(copy) == {
        *("a.py", ".gitignore", "pkg", "pkg/b.py", "pkg/.gitignore", "pkg/keep.bin"),
    }


def test_exclude_counts_more_than_the_ignore_files(source, copies):
    put(source, a="1", b="2", pkg__a="3")
    (source / ".gitignore").write_text("b.py\n")
    copy = send(copies, source, exclude=["a.py", "!/a.py", "!b.py"])
    assert names_in(copy) == {".gitignore", "a.py", "b.py", "pkg"}


def test_ignore_files_above_count_within_their_repository(tmp_path, source, copies):
    (source / "app").mkdir()
    put(source / "app", a="1", b="2", old__c="3")
    (source / ".gitignore").write_text("b.py\n/app/old/\n/a.py\n")
    assert names_in(send(copies, source / "app")) == {"a.py", "b.py", "old", "old/c.py"}
    (source / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*\n")  # above the repository
    assert names_in(send(copies, source / "app")) == {"a.py"}


def test_modes_links_and_empty_folders_are_kept(tmp_path, source, copies):
    put(source, a="1", pkg__b="2")
    (source / "empty").mkdir()
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "run.sh").chmod(0o750)
    (source / "pkg" / "up.py").symlink_to("../a.py")
    (source / "again").symlink_to(source / "pkg")
    (tmp_path / "outside.py").write_text("outside")
    (source / "from_outside.py").symlink_to(tmp_path / "outside.py")
    (source / "data").symlink_to("/usr/lib")
    (source / "nothing").symlink_to("/no/such/file")
    copy = send(copies, source)
    assert (copy / "run.sh").stat().st_mode & 0o777 == 0o750
    assert subprocess.check_output([copy / "run.sh"]) == b"ran\n"
    assert os.readlink(copy / "pkg" / "up.py") == "../a.py"
    assert os.readlink(copy / "again") == "pkg"
    assert not (copy / "from_outside.py").is_symlink()
    assert (copy / "from_outside.py").read_text() == "outside"
    assert os.readlink(copy / "data") == "/usr/lib"
    assert os.readlink(copy / "nothing") == "/no/such/file"
    assert (copy / "empty").is_dir()
    assert os.stat(os.path.realpath(copy)).st_mode & 0o777 == 0o700


def test_what_is_no_file_is_told(source):
    os.mkfifo(source / "pipe")
    listing = read_folder(str(source), max_bytes=1)
    assert listing.manifest == ()
    assert [path for path, _ in listing.skipped] == ["pipe"]


def test_too_much_is_refused_and_where_it_is_is_told(source):
    put(source, small="1")
    (source / "weights.bin").write_bytes(bytes(5000))
    with pytest.raises(WorkspaceError, match=r"more than 4000 bytes.*weights\.bin.*exclude"):
        read_folder(str(source), max_bytes=4000)
    read_folder(str(source), ["weights.bin"], max_bytes=4000)


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_what_cannot_be_read_is_named(source):
    put(source, secret="1")
    (source / "secret.py").chmod(0)
    with pytest.raises(WorkspaceError, match=r"secret\.py cannot be read"):
        read_folder(str(source), max_bytes=10)


def test_a_folder_that_vanishes_is_an_error(source):
    with pytest.raises(WorkspaceError, match="cannot be read"):
        read_folder(str(source / "gone"), max_bytes=10)


def test_odd_names(source, copies):
    (source / os.fsdecode(b"\xff\xfe.py")).write_text("1")
    (source / "a\nb.py").write_text("2")
    copy = send(copies, source)
    assert (copy / os.fsdecode(b"\xff\xfe.py")).read_text() == "1"
    assert (copy / "a\nb.py").read_text() == "2"


# ------------------------------------------------------------------ copies


def test_only_what_changed_is_asked_for(source, copies):
    put(source, a="1", b="2", c="2")
    first = read_folder(str(source), max_bytes=100)
    assert len(copies.offer(str(source), first.manifest)) == 2  # b and c are the same
    send(copies, source)
    put(source, a="other")
    (source / "b.py").rename(source / "renamed.py")
    (source / "c.py").unlink()
    second = read_folder(str(source), max_bytes=100)
    assert len(copies.offer(str(source), second.manifest)) == 1
    copy = send(copies, source)
    assert names_in(copy) == {"a.py", "renamed.py"}
    assert (copy / "a.py").read_text() == "other"
    assert len(os.listdir(copies._contents)) == 2  # and what is not needed is gone


def test_large_files_come_in_parts(source, copies):
    content = os.urandom(100_000)
    (source / "big.bin").write_bytes(content)
    (source / "empty").touch()
    copy = send(copies, source, limit=4096)
    assert (copy / "big.bin").read_bytes() == content
    assert (copy / "empty").read_bytes() == b""


def test_what_a_proc_writes_in_its_copy_spoils_no_later_one(source, copies):
    put(source, a="right", b="1")
    copy = send(copies, source)
    (copy / "a.py").write_text("spoiled")
    put(source, b="2")
    assert (send(copies, source) / "a.py").read_text() == "right"


def test_a_file_that_changes_while_it_is_sent_is_noticed(source, copies):
    put(source, a="before")
    listing = read_folder(str(source), max_bytes=100)
    (digest,) = copies.offer(str(source), listing.manifest)
    with pytest.raises(WorkspaceError, match=r"a\.py was changed"):
        copies.take(Piece(digest, 0, 6), b"behind")
    put(source, a="less")
    with pytest.raises(WorkspaceError, match=r"a\.py was changed"):
        read_pieces(listing, [Piece(digest, 0, 6)])
    assert (send(copies, source) / "a.py").read_text() == "less"


def test_the_switch_is_atomic_and_an_old_tree_stays_while_it_is_used(source, copies):
    names = [f"m{index}" for index in range(15)]
    put(source, **dict.fromkeys(names, "0"))
    copy = send(copies, source)
    seen: list[set[str]] = []
    over = threading.Event()

    def look() -> None:
        while not over.is_set():
            # Through one descriptor, as a proc that has its working folder here.
            fd = os.open(copy, os.O_RDONLY | os.O_DIRECTORY)
            try:
                texts = set()
                for name in names:
                    with open(os.open(f"{name}.py", os.O_RDONLY, dir_fd=fd)) as file:
                        texts.add(file.read())
                seen.append(texts)
            except FileNotFoundError:
                pass  # a tree in which nobody has a working folder may go
            finally:
                os.close(fd)

    watcher = threading.Thread(target=look)
    watcher.start()
    for round_ in range(1, 8):
        put(source, **dict.fromkeys(names, str(round_)))
        send(copies, source)
    over.set()
    watcher.join()
    assert seen
    assert all(len(texts) == 1 for texts in seen)
    with subprocess.Popen(["sleep", "60"], cwd=copy) as user:
        put(source, m0="new")
        send(copies, source)
        assert os.readlink(f"/proc/{user.pid}/cwd").endswith(tuple("0123456789"))  # not deleted
        user.kill()
    put(source, m0="newer")
    send(copies, source)
    assert len([name for name in os.listdir(copies._folder) if name.startswith("tree-")]) == 1


def test_two_folders_do_not_mix(tmp_path, copies):
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        put(tmp_path / name, same=name)
    one, two = send(copies, tmp_path / "one"), send(copies, tmp_path / "two")
    assert (one / "same.py").read_text() == "one"
    assert (two / "same.py").read_text() == "two"


def content(text: bytes) -> tuple[bytes, int]:
    hashed = new_hash()
    hashed.update(text)
    return hashed.digest(), len(text)


def test_nothing_is_written_outside(tmp_path, copies):
    digest, size = content(b"evil")
    link = Entry("out", "link", target=str(tmp_path))
    for manifest in (
        (Entry("../evil.py", "file", 0o644, size, digest),),
        (Entry(f"{tmp_path}/evil.py", "file", 0o644, size, digest),),
        (link, Entry("out/evil.py", "file", 0o644, size, digest)),
    ):
        with pytest.raises(WorkspaceError):
            copies.offer("/source", manifest)
    for piece in (Piece(digest, 0, size), Piece(b"../../evil", 0, size)):
        with pytest.raises(WorkspaceError):
            copies.take(piece, b"evil")
    with pytest.raises(KeyError):
        copies.commit("/source")
    assert not list(tmp_path.rglob("evil*"))


def test_parts_that_do_not_fit_are_refused(copies):
    digest, size = content(b"content")
    copies.offer("/source", (Entry("a", "file", 0o644, size, digest),))
    for fitting, (offset, text) in (
        (b"", (1, b"ontent")),
        (b"", (0, b"content, and more")),
        (b"con", (4, b"ent")),
        (b"con", (3, b"tent, and more")),
    ):
        if fitting:
            copies.take(Piece(digest, 0, len(fitting)), fitting)
        with pytest.raises(WorkspaceError):
            copies.take(Piece(digest, offset, len(text)), text)
    with pytest.raises(WorkspaceError, match="never came"):
        copies.commit("/source")
    assert not [name for name in os.listdir(copies._folder) if name.startswith("tree-")]


# ------------------------------------------------------------------ the private folder


OWNER = """
import os, sys
from slurmmesh.hosts.copies import PrivateFolder
folder = PrivateFolder()
open(os.path.join(folder.path, "file"), "w").close()
print(folder.path, flush=True)
sys.stdin.read()
folder.close()
"""


def owner() -> tuple[subprocess.Popen, Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen) -> None:
    with contextlib.suppress(BrokenPipeError):
        process.communicate()


def test_the_private_folder_is_private_and_goes_with_its_owner(wait_until):
    process, folder = owner()
    assert folder.stat().st_mode & 0o777 == 0o700
    end(process)
    assert not folder.exists()


def test_it_goes_when_its_owner_is_killed(wait_until):
    process, folder = owner()
    process.send_signal(signal.SIGKILL)
    end(process)
    wait_until(lambda: not folder.exists())


def test_what_a_dead_node_left_is_swept_but_not_what_is_in_use(monkeypatch, wait_until):
    monkeypatch.setattr(copies_module, "_SETTLED_S", -1.0)
    process, used = owner()
    left = used.with_name(used.name + "-left")
    shutil.copytree(used, left)
    link = used.with_name(used.name + "-link")
    link.symlink_to(used)
    try:
        copies_module.sweep()
        assert (used / "file").exists()
        assert not left.exists()
        assert link.is_symlink()
    finally:
        link.unlink()
        end(process)


def test_slurms_own_folder_of_the_job_is_used(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_TMPDIR", str(tmp_path))
    mine = PrivateFolder()
    mine.close()
    assert Path(mine.path).parent == tmp_path

"""Copies of folders of code in this host's private folder, each switched from old to new at once.

In the private folder are the contents received, named by their hashes, and for each folder copied a
link ``<number>/code`` to its newest tree. What the link shows changes in one step, so nobody sees
half a copy. An older tree stays for as long as a process has its working folder there.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import stat
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from slurmmesh.errors import WorkspaceError
from slurmmesh.hosts.manifest import Entry, Manifest, Piece, check_manifest, new_hash, sizes_of

_PREFIX = f"slurmmesh-code-{os.getuid()}-"
_SETTLED_S = 60.0
"""A folder that is younger may not have been locked yet by the agent it belongs to."""
_WATCH = 'read -r _; for _ in 1 2 3 4 5; do rm -rf -- "$1" && exit; sleep 1; done'


class PrivateFolder:
    """A folder (0700) on this node's own disk that is gone when this process is, however it ends.

    A small child removes it when this process dies without having done so. Where that dies in the
    same moment, as when Slurm kills a step, ``sweep`` does for the next agent on this node.

    Raises OSError.
    """

    def __init__(self) -> None:
        self.path = os.path.realpath(tempfile.mkdtemp(prefix=_PREFIX, dir=_base()))
        try:
            self._lock = _locked(self.path)
            self._watcher = subprocess.Popen(
                ["sh", "-c", _WATCH, "slurmmesh-code", self.path],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        except BaseException:
            shutil.rmtree(self.path, ignore_errors=True)
            raise

    def close(self) -> None:
        """Remove it."""
        shutil.rmtree(self.path, ignore_errors=True)
        assert self._watcher.stdin is not None
        with contextlib.suppress(OSError):
            self._watcher.stdin.close()
        self._watcher.wait()
        os.close(self._lock)


def _locked(path: str) -> int:
    """A descriptor that holds a lock on a folder for as long as this process lives."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _base() -> str:
    base = os.environ.get("SLURM_TMPDIR", "")
    return base if os.path.isdir(base) else tempfile.gettempdir()


def sweep() -> None:
    """Remove what agents of our own user have left that are dead."""
    try:
        base = _base()
        ours = [os.path.join(base, name) for name in os.listdir(base) if name.startswith(_PREFIX)]
    except OSError:
        return
    for path in ours:
        with contextlib.suppress(OSError):
            about = os.lstat(path)
            is_old = time.time() - about.st_mtime > _SETTLED_S
            if not (stat.S_ISDIR(about.st_mode) and about.st_uid == os.getuid() and is_old):
                continue
            fd = _locked(path)  # BlockingIOError: its agent lives
            try:
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(fd)


class Copies:
    """The copies in one private folder."""

    def __init__(self, folder: str) -> None:
        self._contents = os.path.join(folder, "contents")
        self._folder = folder
        self._trees = 0
        self._offered: dict[str, Manifest] = {}
        self._sizes: dict[bytes, int] = {}
        self._partial: tuple[bytes, int] = b"", 0  # a content, and how much of it is there
        self.manifests: dict[str, Manifest] = {}
        self.links: dict[str, str] = {}
        """Where the copy of each folder is to be found, whichever tree is its newest."""
        os.mkdir(self._contents, 0o700)

    def offer(self, source: str, manifest: Manifest) -> list[bytes]:
        """Take the list of what the folder ``source`` holds now; returns the contents that lack.

        Raises:
            WorkspaceError: the list would lead out of the copy.
        """
        check_manifest(manifest)
        self._offered[source] = manifest
        self._sizes = {}
        for each in self._offered.values():
            self._sizes |= sizes_of(each)
        return [digest for digest in sizes_of(manifest) if not self._has(digest)]

    def take(self, piece: Piece, content: bytes | bytearray | memoryview) -> None:
        """Take part of a content; the parts come in their order.

        Raises:
            WorkspaceError: it is no part of what was offered, or not what its hash says.
            OSError: there is no room for it.
        """
        if self._has(piece.digest):
            return
        if piece.offset == 0:
            self._partial = piece.digest, 0
        end = piece.offset + len(content)
        size = self._sizes.get(piece.digest, -1)
        if self._partial != (piece.digest, piece.offset) or end > size:
            raise WorkspaceError("a part of a file came that was not awaited")
        with open(f"{self._place(piece.digest)}.part", "ab" if piece.offset else "wb") as file:
            file.write(content)
        self._partial = piece.digest, end
        if end == size:
            self._complete(piece.digest)

    def commit(self, source: str) -> str:
        """Make the copy of ``source`` what was offered last; returns where it is.

        Raises:
            WorkspaceError: contents are missing.
            OSError: there is no room for it.
        """
        manifest = self._offered.pop(source)
        if self.manifests.get(source) != manifest:
            self._switch(source, self._build(manifest))
            self.manifests[source] = manifest
            self._tidy()
        return self.links[source]

    # -- contents ---------------------------------------------------------------------------------

    def _place(self, digest: bytes) -> str:
        return os.path.join(self._contents, digest.hex())

    def _has(self, digest: bytes) -> bool:
        return os.path.exists(self._place(digest))

    def _complete(self, digest: bytes) -> None:
        part = f"{self._place(digest)}.part"
        hashed = new_hash()
        with open(part, "rb") as written:
            while block := written.read(1 << 20):
                hashed.update(block)
        if hashed.digest() != digest:
            path = next(
                entry.path
                for manifest in self._offered.values()
                for entry in manifest
                if entry.digest == digest
            )
            raise WorkspaceError(f"{path} was changed while it was being sent: sync again")
        os.rename(part, self._place(digest))

    # -- trees ------------------------------------------------------------------------------------

    def _build(self, manifest: Manifest) -> str:
        """A new tree with all that is in the manifest, whose paths have been checked."""
        self._trees += 1
        tree = os.path.join(self._folder, f"tree-{self._trees}")
        os.mkdir(tree, 0o700)
        try:
            for entry in manifest:
                self._make(entry, os.path.join(tree, entry.path))
        except BaseException:
            shutil.rmtree(tree, ignore_errors=True)
            raise
        return tree

    def _make(self, entry: Entry, path: str) -> None:
        if entry.kind == "folder":
            os.mkdir(path, 0o700)
        elif entry.kind == "link":
            os.symlink(entry.target, path)
        elif not self._has(entry.digest):
            raise WorkspaceError(f"the content of {entry.path} never came")
        else:
            shutil.copyfile(self._place(entry.digest), path)
            os.chmod(path, entry.mode)

    def _switch(self, source: str, tree: str) -> None:
        link = self.links.get(source)
        if link is None:
            place = os.path.join(self._folder, str(len(self.links)))
            os.mkdir(place, 0o700)
            link = os.path.join(place, "code")
        new = f"{link}.new"
        os.symlink(tree, new)
        os.replace(new, link)
        self.links[source] = link

    def _tidy(self) -> None:
        """Remove what nobody uses any more."""
        used = {os.readlink(link) for link in self.links.values()} | set(_working_folders())
        for name in os.listdir(self._folder):
            tree = os.path.join(self._folder, name)
            if name.startswith("tree-") and not any(
                each == tree or each.startswith(f"{tree}/") for each in used
            ):
                shutil.rmtree(tree, ignore_errors=True)
        wanted = {
            digest.hex()
            for manifest in (*self.manifests.values(), *self._offered.values())
            for digest in sizes_of(manifest)
        }
        for name in set(os.listdir(self._contents)) - wanted:
            os.unlink(os.path.join(self._contents, name))


def _working_folders() -> Sequence[str]:
    """The working folders of all processes that we may look at."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            found.append(os.readlink(path))
    return found

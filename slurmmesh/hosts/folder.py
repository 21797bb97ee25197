"""Reads a folder of code: what is in it, but for what is left out, and the bytes of its files."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import IO

from slurmmesh.errors import WorkspaceError
from slurmmesh.hosts.ignore import ALWAYS, IgnoreRules
from slurmmesh.hosts.manifest import Entry, Manifest, Piece, new_hash

MAX_ENTRIES = 100_000
"""Files, folders and links in one folder of code."""

_IGNORE_FILE = ".gitignore"
_OF_AN_ENVIRONMENT = "pyvenv.cfg"
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Listing:
    """A folder as it was when it was read.

    Attributes:
        skipped: what was left out though no rule says so, each with why.
    """

    folder: str
    manifest: Manifest
    skipped: tuple[tuple[str, str], ...]


def read_folder(
    folder: str, exclude: Iterable[str] = (), private: Collection[str] = (), *, max_bytes: int
) -> Listing:
    """List a folder, with the hash of each file.

    Left out are what the .gitignore files say (also those of the folders above, up to the top of
    the repository), what ``exclude`` says, git's own folder, caches of Python, virtual
    environments, and the folders ``private``. A link to a file outside counts as that file; another
    link that leads out becomes an absolute one.

    Args:
        folder: an absolute path without links.
        exclude: lines as of a .gitignore file in ``folder``; they count more than those.
        max_bytes: of all files together.

    Raises:
        WorkspaceError: something cannot be read, or it is more than ``max_bytes``.
    """
    reader = _Reader(folder, exclude, private, max_bytes)
    try:
        reader.walk("", _rules_above(folder))
    except OSError as error:
        raise WorkspaceError(
            f"{error.filename or folder} cannot be read: {error.strerror}; exclude it, or correct "
            "its permissions"
        ) from error
    return Listing(folder, tuple(reader.entries), tuple(reader.skipped))


def read_pieces(listing: Listing, pieces: Sequence[Piece]) -> list[bytes]:
    """The bytes of these pieces.

    Raises:
        WorkspaceError: a file is no longer as it was listed.
    """
    paths = {entry.digest: entry.path for entry in listing.manifest if entry.kind == "file"}
    found = []
    for piece in pieces:
        path = os.path.join(listing.folder, paths[piece.digest])
        try:
            with open(path, "rb") as file:
                file.seek(piece.offset)
                content = file.read(piece.length)
        except OSError as error:
            raise WorkspaceError(f"{path} cannot be read any more: {error.strerror}") from error
        if len(content) != piece.length:
            raise WorkspaceError(f"{path} was changed while it was being sent: sync again")
        found.append(content)
    return found


class _Rules:
    """Rules over paths that are relative to the folder read, though some files lie above it.

    Args:
        prefix: the folder, relative to the uppermost one that has a say: empty or ending in ``/``.
    """

    def __init__(self, prefix: str, rules: IgnoreRules) -> None:
        self._prefix = prefix
        self._rules = rules

    def below(self, place: str, base: str) -> _Rules:
        """Those that hold in the folder ``base``, which lies at ``place``."""
        lines = _lines_of(os.path.join(place, _IGNORE_FILE))
        if not lines:
            return self
        return _Rules(self._prefix, IgnoreRules(self._prefix + base, lines, self._rules))

    def ignores(self, path: str, is_folder: bool) -> bool:
        return bool(self._rules.ignores(self._prefix + path, is_folder))


def _rules_above(folder: str) -> _Rules:
    """What the .gitignore files above a folder say; nothing if it is in no repository."""
    top = folder
    while not os.path.lexists(os.path.join(top, ".git")):
        top, child = os.path.dirname(top), top
        if top == child:
            return _Rules("", IgnoreRules())
    rules = IgnoreRules()
    base = ""
    for name in os.path.relpath(folder, top).split(os.sep) if folder != top else ():
        rules = IgnoreRules(base, _lines_of(os.path.join(top, base, _IGNORE_FILE)), rules)
        base += f"{name}/"
    return _Rules(base, rules)


def _lines_of(path: str) -> list[str]:
    """The lines of a .gitignore file; none if it is not there, or is a link, as git has it."""
    try:
        if not stat.S_ISREG(os.lstat(path).st_mode):
            return []
        with open(path, encoding="utf-8-sig", errors="surrogateescape", newline="\n") as file:
            return file.read().split("\n")
    except FileNotFoundError:
        return []


class _Reader:
    def __init__(
        self, folder: str, exclude: Iterable[str], private: Collection[str], max_bytes: int
    ) -> None:
        self._folder = folder
        self._exclude = IgnoreRules("", exclude)
        self._private = private
        self._max_bytes = max_bytes
        self._size = 0
        self.entries: list[Entry] = []
        self.skipped: list[tuple[str, str]] = []

    def walk(self, base: str, above: _Rules) -> None:
        """Read the folder ``base``: empty, or ending in ``/``."""
        place = os.path.join(self._folder, base)
        rules = above.below(place, base)
        with os.scandir(place) as found:
            listing = sorted(found, key=lambda each: each.name)
        for each in listing:
            path = base + each.name
            is_folder = each.is_dir(follow_symlinks=False)
            if self._leaves_out(each, path, is_folder, rules):
                continue
            if is_folder:
                self._add(Entry(path, "folder"))
                self.walk(f"{path}/", rules)
            elif each.is_symlink():
                self._take_link(path, each.path)
            else:
                self._take_file(path, each.path)

    def _leaves_out(
        self, each: os.DirEntry[str], path: str, is_folder: bool, rules: _Rules
    ) -> bool:
        if each.name in ALWAYS or each.path in self._private:
            return True
        if is_folder and os.path.lexists(os.path.join(each.path, _OF_AN_ENVIRONMENT)):
            return True
        verdict = self._exclude.ignores(path, is_folder)
        return rules.ignores(path, is_folder) if verdict is None else verdict

    def _take_link(self, path: str, place: str) -> None:
        target = os.path.realpath(place)
        if target == self._folder or target.startswith(f"{self._folder.rstrip('/')}/"):
            relative = os.path.relpath(target, os.path.dirname(place))
            self._add(Entry(path, "link", target=relative))
        elif os.path.isfile(target):
            self._take_file(path, target)
        else:
            self._add(Entry(path, "link", target=target))

    def _take_file(self, path: str, place: str) -> None:
        if not stat.S_ISREG(os.lstat(place).st_mode):  # to open another kind may do something
            self.skipped.append((path, "it is neither a file nor a folder nor a link"))
            return
        with open(place, "rb", buffering=0) as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            size, digest = self._hash(file)
        self._add(Entry(path, "file", mode, size, digest))

    def _hash(self, file: IO[bytes]) -> tuple[int, bytes]:
        hashed, size = new_hash(), 0
        while block := file.read(_BLOCK):
            hashed.update(block)
            size += len(block)
            self._size += len(block)
            if self._size > self._max_bytes:
                raise WorkspaceError(
                    f"{self._folder} has more than {self._max_bytes} bytes that no rule leaves out "
                    f"(counted up to {file.name}): exclude what is no code, or raise max_bytes"
                )
        return size, hashed.digest()

    def _add(self, entry: Entry) -> None:
        self.entries.append(entry)
        if len(self.entries) > MAX_ENTRIES:
            raise WorkspaceError(
                f"{self._folder} has more than {MAX_ENTRIES} files and folders that no rule leaves "
                f"out (counted up to {entry.path}): exclude what is no code"
            )

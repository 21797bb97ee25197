"""What a folder of code holds, and what has to be sent to make copies of it. Pure: no I/O.

A file is known by the hash of its content, so that one which was renamed, or is there twice, is
sent once. Paths are relative to the folder, with ``/`` between their parts.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from slurmmesh.errors import WorkspaceError

PIECE = 4 << 20
"""Bytes of content in one message at most."""
_PIECES_A_MESSAGE = 1024
_HASH_SIZE = 32


@dataclass(frozen=True)
class Entry:
    """One thing in the folder.

    Attributes:
        kind: ``file``, ``folder`` or ``link``.
        mode: permissions of a file, of its last nine bits.
        size: of a file, in bytes.
        digest: of a file's content, see :func:`new_hash`.
        target: what a link names: a path relative to where it is that stays in the folder, or an
            absolute one.
    """

    path: str
    kind: str
    mode: int = 0
    size: int = 0
    digest: bytes = b""
    target: str = ""


Manifest = tuple[Entry, ...]
"""All that is in a folder; folders before what is in them."""


@dataclass(frozen=True)
class Piece:
    """Part of a content: ``length`` bytes from ``offset`` on."""

    digest: bytes
    offset: int
    length: int


@dataclass(frozen=True)
class Difference:
    """Between two manifests: paths of files and links, sorted."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed)


def new_hash() -> hashlib.blake2b:
    """The hash that names contents; its digest has 32 bytes."""
    return hashlib.blake2b(digest_size=_HASH_SIZE)


def check_manifest(manifest: Manifest) -> None:
    """See that a copy made from it lies in its own folder whole, whoever made it.

    Raises:
        WorkspaceError: names the entry that would not, or makes no sense.
    """
    folders = {""}
    seen: set[str] = set()
    for entry in manifest:
        parent, slash, name = entry.path.rpartition("/")
        if slash and not parent:
            raise WorkspaceError(f"{entry.path!r} is not inside of a folder")
        if name in ("", ".", "..") or "\0" in entry.path or entry.path in seen:
            raise WorkspaceError(f"no file can be written as {entry.path!r}")
        if parent not in folders:  # and so no part of it is a link, or leads out
            raise WorkspaceError(f"{entry.path!r} is in no folder of its own list")
        if not _makes_sense(entry):
            raise WorkspaceError(f"{entry.path!r} cannot be made: {entry.kind!r}")
        seen.add(entry.path)
        if entry.kind == "folder":
            folders.add(entry.path)


def _makes_sense(entry: Entry) -> bool:
    if entry.kind == "file":
        hashed = isinstance(entry.digest, bytes) and len(entry.digest) == _HASH_SIZE
        return hashed and entry.size >= 0 and 0 <= entry.mode <= 0o777
    if entry.kind == "link":
        return bool(entry.target) and "\0" not in entry.target and link_stays(entry)
    return entry.kind == "folder"


def link_stays(entry: Entry) -> bool:
    """Whether a link is an absolute one, or one that does not climb out of the folder."""
    if posixpath.isabs(entry.target):
        return True
    target = posixpath.normpath(posixpath.join(posixpath.dirname(entry.path), entry.target))
    return target.split("/")[0] != ".."


def sizes_of(manifest: Manifest) -> dict[bytes, int]:
    """The contents that a manifest names, with their sizes in bytes."""
    return {entry.digest: entry.size for entry in manifest if entry.kind == "file"}


def difference(old: Manifest, new: Manifest) -> Difference:
    """What became of the files and links of ``old`` in ``new``."""
    before = {entry.path: entry for entry in old if entry.kind != "folder"}
    after = {entry.path: entry for entry in new if entry.kind != "folder"}
    return Difference(
        added=tuple(sorted(after.keys() - before.keys())),
        changed=tuple(sorted(p for p in after.keys() & before.keys() if after[p] != before[p])),
        removed=tuple(sorted(before.keys() - after.keys())),
    )


def plan(
    lacking: Mapping[int, Iterable[bytes]], sizes: Mapping[bytes, int], limit: int = PIECE
) -> Iterator[tuple[tuple[int, ...], list[Piece]]]:
    """The messages that bring to each host what it lacks, and each content once.

    A message goes to all hosts that lack what is in it. It has at most ``limit`` bytes; the pieces
    of a content come in their order.

    Args:
        lacking: the digests that each host asks for.
        sizes: of all of these.
    """
    wanted: dict[bytes, list[int]] = {}
    for host, digests in lacking.items():
        for digest in dict.fromkeys(digests):
            wanted.setdefault(digest, []).append(host)
    groups: dict[tuple[int, ...], list[bytes]] = {}
    for digest, hosts in wanted.items():
        groups.setdefault(tuple(sorted(hosts)), []).append(digest)
    for group, digests_of_group in groups.items():
        for batch in _pack(digests_of_group, sizes, limit):
            yield group, batch


def _pack(
    digests: Iterable[bytes], sizes: Mapping[bytes, int], limit: int
) -> Iterator[list[Piece]]:
    batch: list[Piece] = []
    room = limit
    for digest in digests:
        offset, left = 0, sizes[digest]
        while True:
            if batch and (room == 0 or len(batch) == _PIECES_A_MESSAGE):
                yield batch
                batch, room = [], limit
            length = min(left, room)
            batch.append(Piece(digest, offset, length))
            offset, left, room = offset + length, left - length, room - length
            if left == 0:
                break
    if batch:
        yield batch


def moved(path: str, source: str, copy: str) -> str | None:
    """Where ``path``, if it is in the folder ``source`` or is that, lies in ``copy``; else None."""
    if path == source:
        return copy
    inside = path.removeprefix(source.rstrip("/") + "/")
    return None if inside == path else os.path.join(copy, inside)


def import_path(entries: Iterable[str], copies: Mapping[str, str]) -> tuple[str, ...]:
    """``sys.path`` where folders have copies: each entry in one becomes the same place in its copy.

    A copied folder that no entry is in comes first.

    Args:
        copies: the copy of each folder.
    """
    found: list[str] = []
    unnamed = dict(copies)
    for entry in entries:
        # The innermost counts, if a folder and one in it have copies.
        for source in sorted(copies, key=len, reverse=True):
            place = moved(entry, source, copies[source])
            if place is not None:
                unnamed.pop(source, None)
                found.append(place)
                break
        else:
            found.append(entry)
    return (*unnamed.values(), *found)

"""The controller's side of ``sync_workspace``: sends hosts what they lack of a folder of code."""

from __future__ import annotations

import collections
import os
import pickle
import sys
import sysconfig
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from slurmmesh.actors.future import Future
from slurmmesh.errors import UsageError
from slurmmesh.hosts.folder import Listing, read_folder, read_pieces
from slurmmesh.hosts.manifest import Manifest, difference, plan, sizes_of
from slurmmesh.hosts.messages import CommitFolder, OfferFolder, SendPieces

MAX_BYTES = 256 << 20
"""A folder of code with more than this is taken for a mistake, unless the caller says otherwise."""
_UNDER_WAY = 4
"""Messages with contents that have not been answered yet: more would only fill memory."""

T = TypeVar("T")
Ask = Callable[[Sequence[int], Any, str], Future[list[Any]]]
"""Sends a message to hosts; the future has their answers, in order."""


@dataclass(frozen=True)
class SyncedWorkspace:
    """What ``sync_workspace`` did.

    Attributes:
        folder: that was sent.
        files, size: in the copies now, and their bytes.
        added, changed, removed: paths of files and links, against the last sync of this folder;
            all are ``added`` in the first.
        sent_bytes: of content, over all hosts: what is as before or was renamed is not sent, what
            is there twice is sent once.
        skipped: what no rule leaves out and yet cannot be copied, each path with why.
        copies: where each host has its copy.
        reloaded: modules reloaded in procs that were running, over all of them.
    """

    folder: str
    files: int
    size: int
    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    sent_bytes: int
    skipped: tuple[tuple[str, str], ...]
    copies: dict[str, str]
    reloaded: tuple[str, ...] = ()


@dataclass(frozen=True)
class SyncRequest:
    """What is to be sent.

    Attributes:
        folder: an absolute path without links.
        exclude, private, max_bytes: see ``read_folder``.
    """

    folder: str
    exclude: tuple[str, ...]
    private: frozenset[str]
    max_bytes: int

    @classmethod
    def of(
        cls,
        folder: str | os.PathLike[str] | None,
        exclude: Iterable[str],
        max_bytes: int,
        jobs: Iterable[str | os.PathLike[str]],
    ) -> SyncRequest:
        """Check what a user asks for.

        Args:
            folder: None for that of the program's script.
            jobs: folders of jobs, with their logs and certificates, which are not sent.

        Raises:
            UsageError: there is no such folder, it is one of a job, or a rule is no text.
        """
        if isinstance(exclude, str):
            raise UsageError(f"exclude takes a list of rules: [{exclude!r}]")
        rules = tuple(exclude)
        if not all(isinstance(rule, str) for rule in rules):
            raise UsageError(f"exclude takes lines as of a .gitignore file, not {exclude!r}")
        if not max_bytes > 0:
            raise UsageError(f"max_bytes is a number of bytes above 0, not {max_bytes!r}")
        found = os.path.realpath(os.fspath(folder) if folder is not None else _script_folder())
        if not os.path.isdir(found):
            raise UsageError(f"sync_workspace needs a folder, and {found} is none")
        private = frozenset(os.path.realpath(job) for job in jobs)
        if found in private:
            raise UsageError(f"{found} is the folder of jobs, whose logs and keys stay here")
        return cls(found, rules, private, max_bytes)


def _script_folder() -> str:
    first = os.path.abspath(sys.path[0]) if sys.path else "/"
    if first == "/" or first in sysconfig.get_paths().values() or not os.path.isdir(first):
        raise UsageError("sync_workspace cannot tell where this program's code is: name a folder")
    return first


def in_background(what: str, work: Callable[[], T]) -> Future[T]:
    """Do something in a thread of its own; the future has what comes of it."""
    future: Future[T] = Future(what)

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, name="slurmmesh-sync", daemon=True).start()
    return future


class Syncing:
    """Sends folders to hosts, one at a time; remembers what it has sent."""

    def __init__(self, ask: Ask) -> None:
        self._ask = ask
        self._lock = threading.Lock()
        self._last: dict[str, Manifest] = {}

    def sync(self, hosts: dict[int, str], request: SyncRequest) -> SyncedWorkspace:
        """Bring the copies of a folder on these hosts, each with its name, to what it is now.

        Raises:
            WorkspaceError: it cannot be read, or a host cannot take it. A host's copy is then what
                it was, or what it was to be, whole.
            HostLost: a host is gone.
        """
        folder = request.folder
        with self._lock:
            listing = read_folder(
                folder, request.exclude, request.private, max_bytes=request.max_bytes
            )
            offer = OfferFolder(folder, listing.manifest)
            answers = self._ask(tuple(hosts), offer, f"offering {folder}").get()
            lacking = dict(zip(hosts, answers, strict=True))
            sizes = sizes_of(listing.manifest)
            self._send(listing, lacking)
            places = self._ask(tuple(hosts), CommitFolder(folder), f"syncing {folder}").get()
            news = difference(self._last.get(folder, ()), listing.manifest)
            self._last[folder] = listing.manifest
        return SyncedWorkspace(
            folder=folder,
            files=sum(entry.kind == "file" for entry in listing.manifest),
            size=sum(entry.size for entry in listing.manifest),
            added=news.added,
            changed=news.changed,
            removed=news.removed,
            sent_bytes=sum(sizes[digest] for digests in answers for digest in digests),
            skipped=listing.skipped,
            copies=dict(zip(hosts.values(), places, strict=True)),
        )

    def _send(self, listing: Listing, lacking: dict[int, list[bytes]]) -> None:
        under_way: collections.deque[Future[list[Any]]] = collections.deque()
        for hosts, pieces in plan(lacking, sizes_of(listing.manifest)):
            if len(under_way) == _UNDER_WAY:
                under_way.popleft().get()
            contents = tuple(map(pickle.PickleBuffer, read_pieces(listing, pieces)))
            message = SendPieces(tuple(pieces), contents)
            under_way.append(self._ask(hosts, message, f"sending {listing.folder}"))
        for future in under_way:
            future.get()

"""The host's side of ``sync_workspace``: takes folders of code and tells where their copies are.

It works in a thread of its own, started at first use, so that a slow disk delays nothing else. So
does, once, the removal of what dead agents have left; not while the first procs are started.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from slurmmesh.actors.failure import Failure
from slurmmesh.errors import WorkspaceError
from slurmmesh.hosts.manifest import import_path, moved
from slurmmesh.hosts.messages import CommitFolder, OfferFolder, SendPieces
from slurmmesh.wire.codec import dumps, loads
from slurmmesh.wire.frames import Frame, Kind

if TYPE_CHECKING:
    from slurmmesh.hosts.copies import Copies, PrivateFolder

_SWEEP_AFTER_S = 2.0


class Workspace:
    """What a host agent has of the controller's folders.

    Args:
        host: its name, for errors.
        call_soon: calls a function in the agent's loop; from any thread.
        answer: sends an answer. In the loop.
        on_change: told, before the answer, when a copy has become another. In the loop.
    """

    def __init__(
        self,
        host: str,
        call_soon: Callable[..., Any],
        answer: Callable[[Frame], Any],
        on_change: Callable[[], Any],
    ) -> None:
        self._host = host
        self._call_soon = call_soon
        self._answer = answer
        self._on_change = on_change
        self._queue: queue.SimpleQueue[Frame | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._folder: PrivateFolder | None = None
        self._copies: Copies | None = None
        self._links: dict[str, str] = {}
        sweeping = threading.Timer(_SWEEP_AFTER_S, _sweep)
        sweeping.name, sweeping.daemon = "slurmmesh-sweep", True
        sweeping.start()

    def take(self, frame: Frame) -> None:
        """Take a request. Not waiting; each is answered, in order."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="slurmmesh-workspace", daemon=True
            )
            self._thread.start()
        self._queue.put(frame)

    def import_path(self, entries: Iterable[str]) -> tuple[str, ...]:
        """``sys.path`` of procs that are started now, for the controller's ``entries``."""
        return import_path(entries, self._links)

    def working_folder(self, folder: str) -> str:
        """Where procs are started: there if this host has it, else in the copy."""
        if os.path.isdir(folder) or not self._links:
            return folder
        places = (moved(folder, source, copy) for source, copy in self._links.items())
        found = [place for place in places if place is not None and os.path.isdir(place)]
        return found[0] if found else next(iter(self._links.values()))

    def close(self) -> None:
        """Remove all copies. Nothing may run in them any more."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
        if self._folder is not None:
            self._folder.close()

    # -- in its own thread ------------------------------------------------------------------------

    def _serve(self) -> None:
        while (frame := self._queue.get()) is not None:
            kind, value = Kind.RESULT, None
            try:
                value = self._handle(loads(frame.body, frame.buffers))
            except Exception as error:
                kind, value = Kind.ERROR, self._failure(error, frame.ranks[0])
            body, buffers = dumps(value)
            answer = Frame(kind, body, buffers, frame.call, frame.mesh, 0, frame.ranks)
            self._call_soon(self._answer, answer)

    def _handle(self, message: OfferFolder | SendPieces | CommitFolder) -> Any:
        if self._copies is None:
            from slurmmesh.hosts.copies import Copies, PrivateFolder

            self._folder = self._folder or PrivateFolder()
            self._copies = Copies(self._folder.path)
        if isinstance(message, OfferFolder):
            return self._copies.offer(message.source, message.manifest)
        if isinstance(message, SendPieces):
            for piece, content in zip(message.pieces, message.contents, strict=True):
                self._copies.take(piece, content)
            return None
        before = self._copies.manifests.get(message.source)
        place = self._copies.commit(message.source)
        self._links = dict(self._copies.links)
        if self._copies.manifests[message.source] is not before:
            self._call_soon(self._on_change)
        return place

    def _failure(self, error: Exception, rank: int) -> Failure:
        if isinstance(error, WorkspaceError):
            told = WorkspaceError(error.message, self._host)
        elif isinstance(error, OSError):
            where = f"{error.filename}: " if error.filename else ""
            told = WorkspaceError(f"the copy cannot be made: {where}{error.strerror}", self._host)
        else:
            told = WorkspaceError(f"{type(error).__name__}: {error}", self._host)
        return Failure.of(told, actor="", rank=rank, host=self._host, fatal=True)


def _sweep() -> None:
    from slurmmesh.hosts.copies import sweep  # here: the agent's start does not wait for it

    sweep()

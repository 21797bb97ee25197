"""Lines of ranks, shown by the controller as they come, similar ones folded.

Showing them may take any time (a terminal that is stopped, a slow pipe), so a thread of its own
does it, and each host gets leave to send more when its last lines have been shown.
"""

from __future__ import annotations

import contextlib
import itertools
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TextIO

from slurmmesh.actors.future import Future, all_done
from slurmmesh.hosts.folding import Dropped, Folded, Folder, Line
from slurmmesh.hosts.messages import RankLines, StreamLogs
from slurmmesh.hosts.output import stamp

_CLOSE_S = 2.0

Ranks = tuple[int, ...]
HostLines = tuple[int, list[RankLines]]


class LogStreams:
    """Which ranks' lines are shown, and the thread that shows them.

    Args:
        name_of: gives the name of a mesh by its id.
        tell: sends an order to a host, by its index; False if it is gone.
        taken: tells a host that it may send more.
        logs: the folder of the hosts' logs, if there is one.
    """

    def __init__(
        self,
        name_of: Callable[[int], str],
        tell: Callable[[int, StreamLogs], bool],
        taken: Callable[[int], object],
        logs: Path | None,
    ) -> None:
        self._name_of = name_of
        self._tell = tell
        self._taken = taken
        self._logs = logs
        self._windows: dict[tuple[int, int], float] = {}
        self._lock = threading.RLock()
        self._orders = itertools.count(1)
        self._unanswered: dict[int, tuple[int, Future[None]]] = {}
        self._queue: queue.SimpleQueue[HostLines | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def choose(
        self, mesh: int, by_host: Mapping[int, Iterable[int]], level: int | None, window_s: float
    ) -> Future[None]:
        """Show lines of these ranks from ``level`` on, or none any more if it is None.

        Args:
            by_host: the ranks by the index of their host.
            window_s: for how long similar lines are folded into one; 0: not at all.
        """
        with self._lock:
            for rank in itertools.chain.from_iterable(by_host.values()):
                self._windows[mesh, rank] = window_s
            if self._thread is None and level is not None:
                self._thread = threading.Thread(
                    target=self._run, name="slurmmesh-show", daemon=True
                )
                self._thread.start()
        return all_done(
            [self._order(host, mesh, tuple(ranks), level) for host, ranks in by_host.items()],
            "setting which lines are shown",
        )

    def _order(self, host: int, mesh: int, ranks: Ranks, level: int | None) -> Future[None]:
        future: Future[None] = Future("setting which lines are shown")
        with self._lock:
            order = next(self._orders)
            self._unanswered[order] = host, future
        if not self._tell(host, StreamLogs(mesh, ranks, level, order)):
            self.in_force(order)
        return future

    # -- in the loop ----------------------------------------------------------------------------

    def in_force(self, order: int) -> None:
        """A host has done what it was ordered to."""
        with self._lock:
            _, future = self._unanswered.pop(order, (0, None))
        if future is not None:
            future.set_result(None)

    def host_lost(self, host: int) -> None:
        """Nothing more comes from there."""
        with self._lock:
            orders = [order for order, (index, _) in self._unanswered.items() if index == host]
        for order in orders:
            self.in_force(order)

    def forget(self, mesh: int, ranks: int) -> None:
        """A mesh of so many ranks is over."""
        with self._lock:
            for rank in range(ranks):
                self._windows.pop((mesh, rank), None)

    def take(self, host: int, lines: list[RankLines]) -> None:
        """Lines from a host, which sends no more of them before they are shown."""
        self._queue.put((host, lines))

    def close(self) -> None:
        """Show what is left, in bounded time."""
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join(_CLOSE_S)

    # -- in the thread --------------------------------------------------------------------------

    def _run(self) -> None:
        folders: dict[float, Folder] = {}
        while True:
            due = [folder.due for folder in folders.values() if folder.due is not None]
            wait = max(0.0, min(due) - time.monotonic()) if due else None
            item: HostLines | None = (-1, [])
            with contextlib.suppress(queue.Empty):
                item = self._queue.get(timeout=wait)
            host, lines = item or (-1, [])
            for of_rank in lines:
                self._fold(of_rank, folders)
            now = time.monotonic()
            for folder in folders.values():
                if item is None or (folder.due is not None and folder.due <= now):
                    self._show(folder.take())
            if item is None:
                return
            if lines:
                self._taken(host)

    def _fold(self, lines: RankLines, folders: dict[float, Folder]) -> None:
        window = self._windows.get((lines.mesh, lines.rank), 0.0)  # late: it is forgotten
        folder = folders.setdefault(window, Folder(window))
        name, now = self._name_of(lines.mesh), time.monotonic()
        for fd, at, text in lines.lines:
            line = Line(name, lines.rank, fd, at, text.decode(errors="replace"))
            self._show(folder.add(line, now))
        if lines.dropped:
            folder.drop(name, lines.rank, lines.dropped, now)

    def _show(self, found: list[Folded | Dropped]) -> None:
        for each in found:
            if isinstance(each, Dropped):
                where = f"; all are in {self._logs}" if self._logs else ""
                text = f"({each.count} more lines came too fast to be shown here{where})"
                _print(f"{stamp(time.time())} {each.mesh}[{each.rank}] | {text}", sys.stderr)
                continue
            line, more = each.line, f"  [{each.similar} similar]" if each.similar else ""
            stream = sys.stdout if line.fd == 1 else sys.stderr
            _print(f"{stamp(line.at)} {line.mesh}[{line.rank}] | {line.text}{more}", stream)


def _print(text: str, stream: TextIO | None) -> None:
    """That nobody reads it any more is no reason to fail."""
    try:
        print(text, file=stream, flush=True)
    except Exception:
        return

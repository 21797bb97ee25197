"""What a replica is told while it trains, by another thread of its process."""

from __future__ import annotations

import threading
from collections.abc import Callable


class RunOver(Exception):
    """The run ended while this replica was away: there is nothing left for it to do.

    Raised out of ``session.steps()`` of a replica that came back too late, so that the user's
    code after the loop does not go on with weights that were never healed.
    """


class Control:
    """News for the training thread of one process. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._on_death: Callable[[int, int], object] | None = None
        self._on_gone: Callable[[int], object] | None = None
        self._deaths: list[tuple[int, int]] = []
        self._gone: list[int] = []
        self._over = threading.Event()
        self._regroup = threading.Event()

    def peer_died(self, replica: int, incarnation: int) -> None:
        """A replica died: whatever waits for it should stop waiting."""
        with self._lock:
            self._deaths.append((replica, incarnation))
            act = self._on_death
        if act is not None:
            act(replica, incarnation)

    def peer_gone(self, replica: int) -> None:
        """A replica that died will not come back: its host is lost."""
        with self._lock:
            self._gone.append(replica)
            act = self._on_gone
        if act is not None:
            act(replica)

    def listen(
        self, on_death: Callable[[int, int], object], on_gone: Callable[[int], object]
    ) -> None:
        """Have these called for each such news, also for those told before."""
        with self._lock:
            self._on_death, self._on_gone = on_death, on_gone
            deaths, gone = list(self._deaths), list(self._gone)
        for replica, incarnation in deaths:
            on_death(replica, incarnation)
        for replica in gone:
            on_gone(replica)

    def end_run(self) -> None:
        """The run is over: a replica that has not been healed yet gives up."""
        self._over.set()

    def call_together(self) -> None:
        """A replica waits to be let in: meet it soon, not only at the next sync."""
        self._regroup.set()

    @property
    def run_over(self) -> bool:
        """Whether the run has ended without this replica."""
        return self._over.is_set()

    @property
    def meeting_wanted(self) -> bool:
        """Whether a replica waits to be let in."""
        return self._regroup.is_set()

    def met(self) -> None:
        """A quorum was formed: whoever waited is in it."""
        self._regroup.clear()

"""What a listener does about peers that have not proved who they are: few at a time, few lines.

Pure but for the clock; a listener of its own kind (``recovery.transport``) uses it as well.
"""

from __future__ import annotations

import collections
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

MAX_GUESTS = 256
"""So many connections of one listener may be in their handshake."""
QUIET_S = 10.0
"""So long the refusals beyond the first few are only counted, at first."""

_LINES = 20
_LONGEST_QUIET_S = 600.0

Guest = TypeVar("Guest")


class Guests(Generic[Guest]):
    """The connections that are in their handshake.

    When there are too many, one has to go for each that comes: the oldest of the address that
    has the most, so that one stranger does not push out the members at other addresses.
    """

    def __init__(self, most: int = MAX_GUESTS) -> None:
        self.most = most
        self._addresses: dict[Guest, str] = {}  # the oldest first

    def add(self, guest: Guest, address: str) -> Guest | None:
        """Note a new one; returns the one that has to go for it, noted no more."""
        self._addresses[guest] = address
        if len(self._addresses) <= self.most:
            return None
        crowd, _ = collections.Counter(self._addresses.values()).most_common(1)[0]
        oldest = next(each for each, where in self._addresses.items() if where == crowd)
        self.remove(oldest)
        return oldest

    def remove(self, guest: Guest) -> None:
        """It is known now, or gone."""
        self._addresses.pop(guest, None)

    def all(self) -> list[Guest]:
        """Those there are."""
        return list(self._addresses)

    def __len__(self) -> int:
        return len(self._addresses)


class Refusals:
    """Tells of refused connections: each while they are few; a flood is counted instead.

    The first 20 are told, and one more for each 10 seconds. Of the others there is one line for
    all since the last, every 10 seconds at first and every 10 minutes when it does not end, so
    that no flood fills a disk. May be used from any thread.

    Args:
        tell: takes the lines.
        clock: monotonic seconds.
    """

    def __init__(
        self, tell: Callable[[str], object], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tell = tell
        self._clock = clock
        self._lock = threading.Lock()
        self._since = -_LONGEST_QUIET_S
        self._quiet_s = QUIET_S
        self._told = 0
        self._counted = 0

    def add(self, line: str) -> float:
        """A connection was refused. Returns in how many seconds to ``tick``; 0: no need to."""
        with self._lock:
            now = self._clock()
            if now - self._since >= self._quiet_s:
                self._begin(now)
            if self._told < _LINES:
                self._told += 1
                self._tell(line)
                return 0.0
            self._counted += 1
            return self._since + self._quiet_s - now if self._counted == 1 else 0.0

    def tick(self) -> None:
        """Tell how many were only counted, if it is time to."""
        with self._lock:
            now = self._clock()
            if self._counted and now - self._since >= self._quiet_s:
                self._begin(now)

    def flush(self) -> None:
        """Tell how many were only counted."""
        with self._lock:
            self._begin(self._clock())

    def _begin(self, now: float) -> None:
        if self._counted:
            self._tell(f"refused {self._counted} more connections in {now - self._since:.0f} s")
            self._quiet_s = min(2 * self._quiet_s, _LONGEST_QUIET_S)
        else:
            self._quiet_s = QUIET_S
            self._told = max(0, self._told - int((now - self._since) / QUIET_S))
        self._counted = 0
        self._since = now

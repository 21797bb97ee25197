"""How often a mesh may fail: n times in t seconds, counted in a sliding window."""

from __future__ import annotations

from collections import deque

from slurmmesh.errors import ExitCause


class FailureWindow:
    """The failures of the last ``within_s`` seconds and the deaths they were made of.

    Times are seconds of any one clock and never go back; a failure exactly ``within_s`` ago
    still counts.
    """

    def __init__(self, within_s: float) -> None:
        self._within_s = within_s
        self._failures: deque[tuple[float, list[ExitCause]]] = deque()

    def add(self, now: float) -> int:
        """Count a failure now; return how many there are in the window, with this one."""
        self._failures.append((now, []))
        while now - self._failures[0][0] > self._within_s:
            self._failures.popleft()
        return len(self._failures)

    def note(self, causes: list[ExitCause]) -> None:
        """Add deaths to the newest failure, if there is one."""
        if self._failures:
            self._failures[-1][1].extend(causes)

    def mended(self, now: float) -> None:
        """The newest failure led to a restart only now: it counts from now.

        Ending the other ranks takes time; without this a mesh that is slow to end could be
        restarted more often than the window allows.
        """
        _, causes = self._failures.pop()
        self._failures.append((now, causes))

    @property
    def causes(self) -> tuple[ExitCause, ...]:
        """The deaths of all failures in the window, oldest first."""
        return tuple(cause for _, causes in self._failures for cause in causes)

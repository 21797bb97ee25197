"""Ctrl-C and its kin as something to look at, not something that strikes anywhere."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

from slurmmesh.errors import EXIT_INTERRUPTED

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Collects SIGINT, SIGTERM and SIGHUP while it is entered. Main thread only.

    A signal that was ignored before (``nohup``) stays ignored. ``on_signal`` is called for each
    one, in the main thread.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.on_signal: Callable[[int], None] = lambda signum: None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        for signum in _SIGNALS:
            if signal.getsignal(signum) is not signal.SIG_IGN:
                self._before[signum] = signal.signal(signum, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def __bool__(self) -> bool:
        """Whether there was one."""
        return bool(self.received)

    @property
    def exit_code(self) -> int:
        """As a shell tells the end by the first of them; 130 for Ctrl-C."""
        if not self.received or self.received[0] == signal.SIGINT:
            return EXIT_INTERRUPTED
        return 128 + self.received[0]

    def _receive(self, signum: int, _frame: FrameType | None) -> None:
        self.received.append(signum)
        self.on_signal(signum)

"""What a host has forked, and when: procs wait until it is known what they are going to import.

A program spawns procs and then, at once, their actors: so what the procs are going to import is
told a moment after the order to start them, and the fork server can do it once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from slurmmesh.hosts.forkclient import ForkClient, Unborn
from slurmmesh.hosts.forking import TOGETHER
from slurmmesh.hosts.messages import ForkRequest, Imports
from slurmmesh.wire.reactor import Reactor, Timer

WAIT_S = 0.05
"""So long an order waits for imports to be told."""

Born = Sequence[tuple[int, Unborn]]
"""Procs with their local ranks."""


class Births:
    """Passes orders on to the fork server. In the loop's thread."""

    def __init__(self, reactor: Reactor, forks: ForkClient) -> None:
        self._reactor = reactor
        self._forks = forks
        self._waiting: dict[int, list[tuple[Timer, Callable[[tuple[str, ...]], None]]]] = {}

    def order(
        self, mesh: int, request: ForkRequest, procs: Born, imports: tuple[str, ...] | None
    ) -> None:
        """Have procs of a mesh forked.

        Args:
            request: what it says of ranks and imports counts for nothing.
            imports: None: they wait for ``told``, for a moment.
        """

        def fork(modules: tuple[str, ...]) -> None:
            self._fork(request._replace(imports=modules), procs)

        if imports is not None:
            fork(imports)
            return
        timer = self._reactor.call_later(WAIT_S, lambda: self.told(Imports(mesh, ())))
        self._waiting.setdefault(mesh, []).append((timer, fork))

    def told(self, imports: Imports) -> None:
        """What a mesh's procs are going to import is known."""
        for timer, fork in self._waiting.pop(imports.mesh, ()):
            timer.cancel()
            fork(imports.modules)

    def _fork(self, request: ForkRequest, procs: Born) -> None:
        for first in range(0, len(procs), TOGETHER):
            some = procs[first : first + TOGETHER]
            more = first + TOGETHER < len(procs)
            ranks = tuple(local_rank for local_rank, _ in some)
            asked = request._replace(local_ranks=ranks, more=more)
            self._forks.fork(asked, [proc for _, proc in some])

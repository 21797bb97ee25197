"""How ranks of tests meet: by files in a folder, before there is a communicator."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from slurmmesh.gpu import Communicator, CommunicatorId, Peer, this_peer

PATIENCE_S = 60


class Rank:
    """This process among those of a test."""

    def __init__(self, folder: str, rank: int, size: int) -> None:
        self.folder = Path(folder)
        self.rank = rank
        self.size = size

    def tell(self, name: str, what: Any = None) -> None:
        path = self.folder / f"{name}-{self.rank}"
        unfinished = path.with_suffix(".unfinished")
        unfinished.write_bytes(pickle.dumps(what))
        unfinished.rename(path)

    def hear(self, name: str, rank: int) -> Any:
        path = self.folder / f"{name}-{rank}"
        until(path.exists)
        return pickle.loads(path.read_bytes())

    def meet(self, name: str, what: Any = None) -> list[Any]:
        """Returns when all have told; what they told."""
        return self.meet_some(name, what, range(self.size))

    def meet_some(self, name: str, what: Any, ranks: Iterable[int]) -> list[Any]:
        self.tell(name, what)
        return [self.hear(name, rank) for rank in ranks]

    def communicator(self, name: str = "world", **how: Any) -> Communicator:
        """One of all ranks of the test."""
        made = CommunicatorId.new(name) if self.rank == 0 else None
        told: list[tuple[CommunicatorId, Peer]] = self.meet(name, (made, this_peer(self.rank)))
        how = {"peers": [peer for _, peer in told], "timeout": PATIENCE_S, **how}
        return Communicator(told[0][0], self.rank, self.size, **how)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.005)

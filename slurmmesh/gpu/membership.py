"""Who a process is in a communicator, and among whom."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

from slurmmesh.errors import UsageError
from slurmmesh.gpu.blame import Dead
from slurmmesh.gpu.identity import key_of_part
from slurmmesh.gpu.peers import Peer

_MAX_RANKS = 1 << 20


@dataclass(frozen=True)
class Membership:
    """A rank of a communicator.

    Attributes:
        name: of the communicator, for errors and logs.
        key: tells communicators apart, and does not let anybody join.
        rank, size: ranks are counted from 0.
        device: index of this rank's, among those that this process sees.
        peers: the processes that are the ranks, as far as known, by rank.
        dead: tells which ranks are dead, of all hosts.

    Raises:
        UsageError: the numbers make no sense.
    """

    name: str
    key: bytes
    rank: int
    size: int
    device: int
    peers: dict[int, Peer]
    dead: Dead | None

    def __post_init__(self) -> None:
        rank, size = self.rank, self.size
        if type(size) is not int or type(rank) is not int or not 0 <= rank < size <= _MAX_RANKS:
            raise UsageError(f"rank {rank!r} of {size!r}: ranks are 0 to size - 1")
        if not all(0 <= one < size for one in self.peers):
            raise UsageError(f"peers are of ranks {sorted(self.peers)}; ranks are 0 to {size - 1}")

    @functools.cached_property
    def others(self) -> tuple[int, ...]:
        """All ranks but this one."""
        return tuple(other for other in range(self.size) if other != self.rank)

    def part(self, members: list[int], how: str) -> Membership:
        """In a communicator of some ranks, in this order; ``how`` it is made, as all say it."""
        ranks = {member: rank for rank, member in enumerate(members)}
        told = self.dead

        def dead() -> list[int]:
            return [ranks[member] for member in told() if member in ranks] if told else []

        return Membership(
            name=f"{self.name}/{how.split()[0]}",
            key=key_of_part(self.key, how),
            rank=ranks[self.rank],
            size=len(members),
            device=self.device,
            peers={
                rank: replace(self.peers[member], rank=rank)
                for member, rank in ranks.items()
                if member in self.peers
            },
            dead=dead,
        )

"""Looking into the quorums that TorchFT's Lighthouse decides, and making their ids unique.

The Manager asks for a quorum through a client object; ours stands in between. It tells the rest
of recovery who is in, and it makes the id by which the Manager names the store's keys and
decides whether to reconnect depend on the members too: a restarted Lighthouse counts from 1
again, and keys or groups of an earlier quorum of that number must not be taken for the new one.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from slurmmesh.recovery.membership import Membership, parse_member


@dataclass(frozen=True)
class QuorumView:
    """One answer of the Lighthouse, as this replica sees it.

    Attributes:
        quorum: the Lighthouse's number; begins at 1 again when the Lighthouse is restarted.
        names: the members as TorchFT knows them, in its order.
        replicas: their numbers, in the same order.
        rank: this replica's place in ``replicas``.
        step: the highest committed step among them.
        healed_from: the replica whose state this one takes, or None if it is up to date.
        donors_for: places of the members that take this replica's state.
        at: when the answer came, seconds since the epoch.
    """

    quorum: int
    names: tuple[str, ...]
    replicas: tuple[int, ...]
    rank: int
    step: int
    healed_from: int | None
    donors_for: tuple[int, ...]
    at: float


class QuorumClient:
    """Takes the place of TorchFT's ManagerClient inside a Manager."""

    def __init__(self, client: Any, membership: Membership) -> None:
        self._client = client
        self._membership = membership
        self.view: QuorumView | None = None

    def _quorum(self, **request: Any) -> SimpleNamespace:
        """Ask for a quorum; blocks until there is one.

        Raises:
            TimeoutError, RuntimeError: no quorum within the timeout, or no Lighthouse.
        """
        answer = self._client._quorum(**request)
        names = tuple(answer.replica_ids)
        self._membership.set_members(names)
        source = answer.recover_src_replica_rank if answer.heal else None
        self.view = QuorumView(
            quorum=answer.quorum_id,
            names=names,
            replicas=self._membership.replicas,
            rank=answer.replica_rank,
            step=answer.max_step,
            healed_from=None if source is None else parse_member(names[source])[0],
            donors_for=tuple(answer.recover_dst_replica_ranks),
            at=time.time(),
        )
        return SimpleNamespace(
            quorum_id=unique_quorum_id(answer.quorum_id, names),
            replica_rank=answer.replica_rank,
            replica_world_size=answer.replica_world_size,
            recover_src_manager_address=answer.recover_src_manager_address,
            recover_src_replica_rank=answer.recover_src_replica_rank,
            recover_dst_replica_ranks=answer.recover_dst_replica_ranks,
            # The step keeps apart two quorums of the same number and members, which two
            # Lighthouses in turn may give.
            store_address=f"{answer.store_address}/step{answer.max_step}",
            max_step=answer.max_step,
            max_replica_rank=answer.max_replica_rank,
            max_world_size=answer.max_world_size,
            heal=answer.heal,
            replica_ids=answer.replica_ids,
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)


def unique_quorum_id(quorum: int, members: tuple[str, ...]) -> int:
    """A number that differs for other members as well as for another number of the quorum."""
    return quorum << 32 | zlib.crc32("\n".join(members).encode())

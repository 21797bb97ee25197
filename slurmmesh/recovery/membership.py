"""Who is in a quorum, and who is known to be dead.

TorchFT names each start of a replica ``<our name>:<uuid>``. Our part of the name tells which
replica it is and which start of it (its incarnation), so that news of a death, which speaks of
replica and incarnation, can be matched with the members of a quorum.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence

_NAME = re.compile(r"start(\d+)_replica_(\d+)")


def member_name(replica: int, incarnation: int) -> str:
    """The name under which this start of a replica joins quorums.

    TorchFT sorts members by name, and reads the replica's number from the digits at the end.
    With the incarnation in front, long-lived members sort first and so host the shared store.
    """
    return f"start{incarnation:06d}_replica_{replica}"


def parse_member(name: str) -> tuple[int, int]:
    """``(replica, incarnation)`` of a member's name, with or without TorchFT's uuid.

    Raises:
        ValueError: it is no name of ours.
    """
    match = _NAME.fullmatch(name.split(":", 1)[0])
    if match is None:
        raise ValueError(f"{name!r} is not the name of a replica of this job")
    return int(match.group(2)), int(match.group(1))


class Membership:
    """The members of the current quorum and the deaths known so far. Safe from several threads.

    Args:
        alive_from: for each replica the first of its incarnations that is not known to be dead.
        gone: replicas that will not come back.
    """

    def __init__(self, alive_from: Sequence[int] = (), gone: Sequence[int] = ()) -> None:
        self._lock = threading.Lock()
        self._members: tuple[tuple[int, int], ...] = ()
        self._dead_below = {replica: first for replica, first in enumerate(alive_from) if first}
        self._gone = set(gone)

    def set_members(self, names: Sequence[str]) -> None:
        """Take the members of a new quorum, in TorchFT's order.

        A replica that was started again tells that its earlier starts are dead. The Lighthouse
        may not know yet: a restart can be faster than the silence that it waits for.
        """
        members = tuple(parse_member(name) for name in names)
        with self._lock:
            self._members = members
            for replica, incarnation in members:
                if incarnation > self._dead_below.get(replica, 0):
                    self._dead_below[replica] = incarnation

    @property
    def replicas(self) -> tuple[int, ...]:
        """Numbers of the replicas in the quorum, in its order."""
        return tuple(replica for replica, _ in self._members)

    def died(self, replica: int, incarnation: int) -> bool:
        """Note a death; true if that start of the replica is a member now."""
        with self._lock:
            known = self._dead_below.get(replica, 0)
            self._dead_below[replica] = max(known, incarnation + 1)
            return (replica, incarnation) in self._members

    def gone(self, replica: int) -> None:
        """This replica will not come back."""
        with self._lock:
            self._gone.add(replica)

    def missing(self) -> tuple[int, ...]:
        """Replicas that died, are not members again, and may come back."""
        with self._lock:
            return tuple(
                replica
                for replica, alive_from in self._dead_below.items()
                if replica not in self._gone
                and not any(r == replica and i >= alive_from for r, i in self._members)
            )

    def dead_members(self) -> tuple[int, ...]:
        """Members of the current quorum that are known to be dead."""
        with self._lock:
            return tuple(
                replica
                for replica, incarnation in self._members
                if incarnation < self._dead_below.get(replica, 0)
            )

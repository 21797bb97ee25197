"""Which replica runs on which host. Pure."""

from __future__ import annotations

from slurmmesh.errors import UsageError


def place(
    replicas: int, procs_per_replica: int, hosts: int, procs_per_host: int = 0
) -> tuple[int, ...]:
    """The host of each replica: evenly spread, the processes of one replica on one host.

    Args:
        procs_per_host: how many processes a host takes (its number of GPUs); 0: any number.

    Raises:
        UsageError: a number below 1, or they do not fit.
    """
    for name, value in (
        ("replicas", replicas),
        ("procs_per_replica", procs_per_replica),
        ("hosts", hosts),
    ):
        if value < 1:
            raise UsageError(f"{name} must be at least 1, not {value}")
    if procs_per_host:
        per_host = procs_per_host // procs_per_replica
        if per_host * hosts < replicas:
            raise UsageError(
                f"{replicas} replicas of {procs_per_replica} process(es) do not fit: {hosts} "
                f"host(s) with {procs_per_host} each take {per_host * hosts} replica(s). Ask for "
                "more nodes, or give --replicas a smaller number"
            )
    return tuple(replica * hosts // replicas for replica in range(replicas))


def device_indices(placement: tuple[int, ...], procs_per_replica: int) -> tuple[int, ...]:
    """The first device of each replica on its host, counting the replicas placed there."""
    taken: dict[int, int] = {}
    found = []
    for host in placement:
        found.append(taken.get(host, 0))
        taken[host] = taken.get(host, 0) + procs_per_replica
    return tuple(found)

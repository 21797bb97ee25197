"""What one process of a replica is told when it is started: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from slurmmesh.recovery.settings import RecoverySettings


@dataclass(frozen=True)
class Assignment:
    """Who a process is in the run.

    Attributes:
        replica: number of its replica, from 0.
        replicas: how many replicas the run has.
        group_rank: its rank within the replica's group of processes.
        group_size: processes in the group.
        incarnation: how often this replica has been started before.
        lighthouse: URL of the Lighthouse.
        store: host and port of the group's own TCPStore, hosted by its rank 0.
        progress: a step that the run has committed for certain; 0 if none. A replica that finds
            itself behind it, with nobody to take the state from, must not train.
        alive_from: for each replica the first of its incarnations that is not known to be dead;
            empty: no replica has died.
        gone: replicas that will not come back.
        first_device: index on its host of the device of the group's rank 0; None: each process
            sees only its own.
        threads: threads that torch may use for one operation.
        settings: the times to work with.
    """

    replica: int
    replicas: int
    lighthouse: str
    store: tuple[str, int]
    group_rank: int = 0
    group_size: int = 1
    incarnation: int = 0
    progress: int = 0
    alive_from: tuple[int, ...] = ()
    gone: tuple[int, ...] = ()
    first_device: int | None = 0
    threads: int = 1
    settings: RecoverySettings = field(default_factory=RecoverySettings)

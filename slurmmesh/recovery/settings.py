"""How patient recovery is: the times TorchFT works with, in one place."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

from slurmmesh.errors import UsageError


@dataclass(frozen=True)
class RecoverySettings:
    """Times in seconds. The defaults suit steps from milliseconds to a minute.

    Attributes:
        heartbeat_interval_s: how often each replica tells the Lighthouse that it lives.
        heartbeat_timeout_s: silence after which the Lighthouse forgets a replica. Survivors of a
            death cannot form a quorum before it, so it bounds their stall from below.
        quorum_tick_s: how often the Lighthouse looks again while a quorum is incomplete.
        join_timeout_s: how long a quorum waits for a replica that lives but has not asked for it
            (a slow or hung one).
        quorum_timeout_s: how long a replica waits for a quorum, also through restarts of the
            Lighthouse. With DiLoCo it must exceed the time between two syncs.
        connect_timeout_s: to reach the Lighthouse or a peer.
        timeout_s: for a commit vote, and for each step of the state's transfer.
        collective_timeout_s: for a collective whose peers are silent but connected. Deaths do not
            wait for it.
        last_step_wait_s: how long the last step waits for a replica that died and is being
            restarted, so that it ends with the others.
        min_replicas: the smallest number of replicas that may commit a step.
        init_sync: whether replicas take the first weights from one of them; set it to False when
            all make the same weights from one seed.
    """

    heartbeat_interval_s: float = 0.05
    heartbeat_timeout_s: float = 0.25
    quorum_tick_s: float = 0.01
    join_timeout_s: float = 30.0
    quorum_timeout_s: float = 600.0
    connect_timeout_s: float = 10.0
    timeout_s: float = 60.0
    collective_timeout_s: float = 60.0
    last_step_wait_s: float = 10.0
    min_replicas: int = 1
    init_sync: bool = True

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name.endswith("_s") and not (0 < value < math.inf):
                raise UsageError(f"recovery setting {name} must be a positive time, not {value!r}")
        if self.min_replicas < 1:
            raise UsageError(f"min_replicas must be at least 1, not {self.min_replicas}")
        if self.heartbeat_timeout_s < 3 * self.heartbeat_interval_s:
            raise UsageError(
                f"heartbeat_timeout_s ({self.heartbeat_timeout_s}) must be at least three times "
                f"heartbeat_interval_s ({self.heartbeat_interval_s}), "
                "so that one late heartbeat is no death"
            )

    @property
    def timeout(self) -> timedelta:
        """``timeout_s`` as TorchFT wants it."""
        return timedelta(seconds=self.timeout_s)

    @property
    def quorum_retries(self) -> int:
        """Tries that fill ``quorum_timeout_s``: TorchFT pauses at least 0.1 s between two."""
        return max(1, math.ceil(self.quorum_timeout_s / 0.1))

    def environment(self) -> dict[str, str]:
        """The same times under the names TorchFT reads, which beat arguments.

        Set in every replica, so that what a user's shell exports cannot change them unseen.
        """
        return {
            "TORCHFT_TIMEOUT_SEC": str(math.ceil(self.timeout_s)),
            "TORCHFT_QUORUM_TIMEOUT_SEC": str(math.ceil(self.quorum_timeout_s)),
            "TORCHFT_CONNECT_TIMEOUT_SEC": str(math.ceil(self.connect_timeout_s)),
            "TORCHFT_QUORUM_RETRIES": str(self.quorum_retries),
        }

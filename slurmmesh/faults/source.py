"""Faults for a training run: the plans, and how they are set going."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from slurmmesh.errors import UsageError
from slurmmesh.faults.injector import Injector
from slurmmesh.faults.plan import FaultPlan, parse_all
from slurmmesh.recovery.records import Target


@dataclass(frozen=True)
class Faults:
    """What to give to ``recovery.train`` as ``faults``.

    Attributes:
        plans: at least one.
        seed: decides the victims.
        survivors: replicas that each shot leaves to heal from.

    Raises:
        UsageError: no plan.
    """

    plans: tuple[FaultPlan, ...]
    seed: int = 0
    survivors: int = 1

    def __post_init__(self) -> None:
        if not self.plans:
            raise UsageError("no fault to inject: give at least one plan, as in kill@3s")

    @classmethod
    def parse(cls, text: str, seed: int = 0) -> Faults:
        """From a comma-separated list such as ``kill@3s,segfault@10s``.

        Raises:
            UsageError: not such a list.
        """
        return cls(parse_all(text), seed)

    def describe(self) -> list[str]:
        """The plans as they are written."""
        return [str(plan) for plan in self.plans]

    def check(self, replicas: int) -> None:
        """See that these faults can hit one of so many replicas. Raises UsageError if not."""
        if replicas <= self.survivors:
            raise UsageError(
                f"faults in a run of {replicas} replica(s) can never be healed: at least "
                f"{self.survivors + 1} replicas are needed"
            )

    def start(
        self,
        replicas: int,
        targets: Callable[[], Sequence[Target]],
        fire: Callable[[Target, int], object],
    ) -> Injector:
        """Begin to inject; ``stop()`` of what is returned ends it.

        Args:
            targets: gives the processes as they are.
            fire: sends a signal to one of them.
        """
        injector = Injector(
            self.plans, replicas, targets, fire, seed=self.seed, survivors=self.survivors
        )
        injector.start()
        return injector

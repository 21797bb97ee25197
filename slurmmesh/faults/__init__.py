"""Injecting faults: plans, seeded schedules and the injector."""

from slurmmesh.faults.aim import Hit, Miss, aim
from slurmmesh.faults.injector import Injector
from slurmmesh.faults.plan import SIGNALS, FaultPlan, parse, parse_all
from slurmmesh.faults.schedule import Shot, schedule
from slurmmesh.faults.source import Faults
from slurmmesh.recovery.records import Target

__all__ = [
    "SIGNALS",
    "FaultPlan",
    "Faults",
    "Hit",
    "Injector",
    "Miss",
    "Shot",
    "Target",
    "aim",
    "parse",
    "parse_all",
    "schedule",
]

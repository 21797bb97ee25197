"""The event log and what reads it."""

from slurmmesh.telemetry.appender import Appender, OpenFile
from slurmmesh.telemetry.events import (
    Event,
    EventLog,
    emit,
    make_event,
    read_events,
    set_sink,
)
from slurmmesh.telemetry.phases import DURATIONS, PHASES, durations

__all__ = [
    "DURATIONS",
    "PHASES",
    "Appender",
    "Event",
    "EventLog",
    "OpenFile",
    "durations",
    "emit",
    "make_event",
    "read_events",
    "set_sink",
]

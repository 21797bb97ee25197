"""The event log and what reads it."""

from slurmmesh.telemetry.events import (
    Event,
    EventLog,
    emit,
    make_event,
    read_events,
    set_sink,
)

__all__ = ["Event", "EventLog", "emit", "make_event", "read_events", "set_sink"]

"""A hypothesis strategy for events: plausible ones, a few values wild. No job wrote them."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from slurmmesh.telemetry.phases import DURATIONS, PHASES

KINDS = {
    "job_started": "job_id cluster nodes spares argv",
    "host_up": "host name address pid",
    "host_lost": "host cause",
    "procs_spawned": "mesh ranks hosts sizes supervised",
    "proc_up": "mesh rank host pid incarnation",
    "proc_exited": "mesh rank host pid signal exit_code detail stderr expected",
    "proc_restarted": "mesh rank incarnation",
    "ranks_given_up": "mesh ranks reason",
    "run_started": "replicas procs_per_replica steps mode sync_every seed faults pid",
    "step": "replica step loss participants quorum participating committed duration_s",
    "inner_step": "replica step inner loss",
    "fault": "fault replica mesh rank host pid",
    "fault_failed": "fault replica mesh rank host pid error",
    "fault_skipped": "fault replica reason",
    "recovery": "recovery replica phase",
    "recovered": "recovery replica signal steps_lost total_s " + " ".join(DURATIONS),
    "quorum": "replica quorum participants step healed_from",
    "lighthouse_up": "address pid incarnation",
    "lighthouse_exited": "address pid incarnation",
    "replica_finished": "replica step loss",
    "run_ended": "status error left_out",
    "replica_started": "replica incarnation device",
    "job_ended": "exit_code",
    "a kind of the future": "replica step",
}
scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["finished", "ddp", "kill", "\ud800", "[red]x", "a\x1b[2Jb\nc"])
    | st.text(max_size=5)
)
values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(), scalars, max_size=2)


@st.composite
def events(draw: st.DrawFn) -> dict[str, Any]:
    """Mostly plausible, so that the folding gets past its first checks; some anything but."""
    kind = draw(st.sampled_from(list(KINDS)))
    event: dict[str, Any] = {"t": draw(st.floats(0, 100)), "kind": kind}
    for name in KINDS[kind].split():
        event[name] = draw(st.sampled_from(PHASES) if name == "phase" else st.integers(0, 5))
    for name in draw(st.lists(st.sampled_from(list(event)), max_size=2)):
        event[name] = draw(values)
    return event

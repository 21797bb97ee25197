"""Lays out the HTML of a report: one page, nothing loaded from elsewhere. Pure.

All text of the event log passes through the template's escaping.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2

from slurmmesh._version import __version__
from slurmmesh.telemetry import wording
from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.outages import Timeline
from slurmmesh.telemetry.phases import DURATIONS
from slurmmesh.telemetry.plots import Plot
from slurmmesh.telemetry.records import Recovery

_TEMPLATE = Path(__file__).with_name("report.html.j2")
_PHASE_HEADS = tuple(name[:-2].replace("_", " ") for name in DURATIONS)


@dataclass(frozen=True)
class Figure:
    """One row of the headline table; ``note`` is the difference to the baseline."""

    name: str
    value: str
    baseline: str
    note: str


def render(
    history: RunHistory,
    summary: dict[str, Any],
    plots: Sequence[Plot],
    baseline: dict[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """Return the page.

    Args:
        summary, baseline: what ``summarize`` made of this run, and of one without faults.
        notes: what else the reader must know, one sentence each.
    """
    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    timeline = Timeline(history)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(
        version=__version__,
        job_id=summary["job_id"] or "?",
        subtitle=_subtitle(history, summary),
        status=summary["status"],
        cards=_cards(summary, baseline),
        plots=[
            {
                "title": plot.title,
                "alt": plot.alt,
                "light": _uri(plot.light),
                "dark": _uri(plot.dark),
            }
            for plot in plots
        ],
        figures=_figures(summary, baseline),
        has_baseline=baseline is not None,
        unequal=[] if baseline is None else _unequal(summary, baseline),
        phase_heads=_PHASE_HEADS,
        spreads=_spreads(summary),
        recoveries=_recoveries(history, timeline),
        faults=_faults(timeline),
        deaths=_other_deaths(history, timeline),
        hosts=[history.hosts[index] for index in sorted(history.hosts)],
        argv=history.argv,
        error=history.run.error,
        notes=[*_where_it_ran(history), *_caveats(history), *notes],
    )


def _uri(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _subtitle(history: RunHistory, summary: dict[str, Any]) -> str:
    run = history.run
    parts = [wording.things(summary["replicas"], "replica")]
    if run.procs_per_replica and run.procs_per_replica > 1:
        parts[0] += f" of {run.procs_per_replica} processes"
    if run.mode:
        sync = f", sync every {run.sync_every}" if run.sync_every else ""
        parts.append(f"{run.mode}{sync}")
    if run.fault_plan:
        parts.append("faults " + run.fault_plan.replace("\n", ", "))
    if run.seed is not None:
        parts.append(f"seed {run.seed}")
    if summary["cluster"]:
        nodes = "" if summary["nodes"] is None else f", {wording.things(summary['nodes'], 'node')}"
        parts.append(f"{summary['cluster']}{nodes}")
    return " · ".join(parts)


def _cards(summary: dict[str, Any], baseline: dict[str, Any] | None) -> list[tuple[str, str, str]]:
    """(figure, what it is, small print) of the tiles on top."""
    stall, back = summary["survivor_stall_s"], summary["replica_back_s"]
    beside = ""
    if baseline is not None:
        beside = f"no-fault baseline {wording.loss(baseline['final_loss'])}"
    lost = summary["faults"] - summary["recovered"]
    return [
        (wording.loss(summary["final_loss"]), "final loss", beside),
        (
            f"{summary['recovered']} of {summary['faults']}",
            "victims back in training",
            f"{lost} not back by the end" if lost else "",
        ),
        (wording.share(summary["replica_availability"]), "replica availability", ""),
        (wording.seconds(stall["p50"]), "kill to survivors' next commit", _p95(stall)),
        (wording.seconds(back["p50"]), "kill to victim taking part", _p95(back)),
        (str(summary["full_restarts"]), "full restarts", ""),
    ]


def _p95(spread: dict[str, Any]) -> str:
    if not spread["n"]:
        return ""
    return f"median of {spread['n']}; p95 {wording.seconds(spread['p95'])}"


def _figures(summary: dict[str, Any], baseline: dict[str, Any] | None) -> list[Figure]:
    def row(name: str, key: str, show: Any, compare: bool = False) -> Figure:
        mine, theirs = summary[key], baseline.get(key) if baseline is not None else None
        note = _relative(mine, theirs) if compare else ""
        return Figure(name, show(mine), show(theirs) if baseline is not None else "", note)

    def median(spread: dict[str, Any] | None) -> str:
        return wording.seconds(spread["p50"] if spread else None)

    return [
        row("status", "status", _plain),
        row("committed steps", "steps", _plain),
        row("wall time", "wall_s", wording.seconds, compare=True),
        row("first loss", "first_loss", wording.loss, compare=True),
        row("final loss", "final_loss", wording.loss, compare=True),
        row("faults", "faults", _plain),
        row("victims back in training", "recovered", _plain),
        row("full restarts", "full_restarts", _plain),
        row("replica availability", "replica_availability", wording.share),
        row("kill to survivors' next commit, median", "survivor_stall_s", median),
        row("kill to victim taking part, median", "replica_back_s", median),
    ]


def _unequal(summary: dict[str, Any], baseline: dict[str, Any]) -> list[str]:
    """Why the baseline is none, if it is not the same training without faults."""
    names = {"steps": "committed steps", "replicas": "replicas", "mode": "mode"}
    names |= {"sync_every": "sync every", "seed": "seed"}
    reasons = [
        f"{name}: {_plain(summary[key])} here, {_plain(baseline[key])} in the baseline"
        for key, name in names.items()
        if key in baseline and summary[key] != baseline[key]
    ]
    if baseline.get("faults"):
        reasons.append(f"the baseline had {wording.things(baseline['faults'], 'fault')} itself")
    return reasons


def _plain(value: Any) -> str:
    return "-" if value is None else str(value)


def _relative(mine: Any, theirs: Any) -> str:
    if not isinstance(mine, (int, float)) or not isinstance(theirs, (int, float)) or not theirs:
        return ""
    return f"{(mine / theirs - 1) * 100:+.1f} %"


def _spreads(summary: dict[str, Any]) -> list[tuple[str, list[str]]]:
    named = [
        ("kill to survivors' next commit", summary["survivor_stall_s"]),
        ("kill to victim taking part", summary["replica_back_s"]),
        *zip(_PHASE_HEADS, (summary["phases"][name] for name in DURATIONS), strict=True),
        ("all phases", summary["phases"]["total_s"]),
    ]
    return [
        (name, [*(wording.seconds(own[p]) for p in ("p50", "p95", "p99")), str(own["n"])])
        for name, own in named
        if own["n"]
    ]


def _recoveries(history: RunHistory, timeline: Timeline) -> list[dict[str, Any]]:
    start = timeline.bounds[0] if timeline.bounds else 0.0
    return [
        {
            "id": own.id,
            "replica": _plain(own.replica),
            "at": _since(start, min(own.times.values(), default=None)),
            "signal": own.signal,
            "phases": [wording.seconds(own.duration(name)) for name in DURATIONS],
            "total": wording.seconds(own.duration("total_s")),
            "steps_lost": _plain(own.steps_lost),
            "outcome": _outcome(own),
        }
        for own in sorted(history.run.recoveries.values(), key=lambda own: own.id)
    ]


def _outcome(recovery: Recovery) -> str:
    return "back" if recovery.complete else f"not back (last: {recovery.phase or 'nothing'})"


def _faults(timeline: Timeline) -> list[dict[str, Any]]:
    start = timeline.bounds[0] if timeline.bounds else 0.0
    return [
        {
            "at": _since(start, outcome.fault.t),
            "kind": outcome.fault.kind,
            "replica": _plain(outcome.fault.replica),
            "mesh": outcome.fault.mesh,
            "rank": _plain(outcome.fault.rank),
            "host": outcome.fault.host,
            "pid": _plain(outcome.fault.pid),
            "stall": wording.seconds(max(outcome.stalls.values(), default=None)),
            "survivors": len(outcome.stalls),
            "back": "not back" if outcome.back_s is None else wording.seconds(outcome.back_s),
        }
        for outcome in timeline.outcomes
    ]


def _other_deaths(history: RunHistory, timeline: Timeline) -> list[dict[str, Any]]:
    """Unexpected ends of processes that no injected fault accounts for."""
    start = timeline.bounds[0] if timeline.bounds else history.first_t or 0.0
    shot = {(fault.mesh, fault.rank, fault.pid) for fault in history.run.faults}
    return [
        {
            "at": _since(start, end.t),
            "who": f"rank {_plain(end.rank)} of {end.mesh}",
            "host": end.host,
            "how": end.signal or f"exit code {_plain(end.exit_code)}",
            "detail": end.detail,
            "stderr": end.stderr.strip("\n"),
        }
        for end in history.exits
        if not end.expected and (end.mesh, end.rank, end.pid) not in shot
    ]


def _since(start: float, t: float | None) -> str:
    return "-" if t is None else f"{t - start:+.2f} s"


def _where_it_ran(history: RunHistory) -> list[str]:
    """What a reader must know about the machines before quoting a figure."""
    notes: list[str] = []
    if not history.has_run:
        return notes
    hosts = list(history.hosts.values())
    if history.cluster == "local":
        notes.append("Ran without Slurm: every host is a process on one machine.")
    elif len(hosts) > 1 and _one_machine([host.address for host in hosts]):
        notes.append(
            f"Emulation: the {len(hosts)} hosts are on one machine and share its cores and its "
            "network stack. The figures are not those of a cluster of that size."
        )
    device = history.run.device
    if not device:
        notes.append("The event log does not name the device the replicas computed on.")
    elif device.lower() == "cpu":
        notes.append(
            "The replicas computed on CPUs, with tensors between them over Gloo; on accelerators "
            "all times differ."
        )
    else:
        notes.append(f"The replicas computed on: {device}, with tensors between them over Gloo.")
    return notes


def _one_machine(addresses: list[str]) -> bool:
    if len(set(addresses)) == 1 and addresses[0]:
        return True
    try:
        return all(ipaddress.ip_address(address).is_loopback for address in addresses)
    except ValueError:
        return False


def _caveats(history: RunHistory) -> list[str]:
    notes = []
    if not history.has_run:
        notes.append("The event log tells of no training.")
    elif history.run.status is None:
        notes.append("The log has no end of the run: it is still going on, or was killed.")
    if history.earlier_runs:
        runs = wording.things(history.earlier_runs, "earlier training run")
        notes.append(f"Left out: {runs} of this job.")
    skipped = history.run.skipped_faults
    if skipped:
        reasons = dict.fromkeys(fault.reason for fault in skipped if fault.reason)
        why = f": {'; '.join(reasons)}" if reasons else ""
        notes.append(f"Not fired: {wording.things(len(skipped), 'planned fault')}{why}.")
    if history.malformed:
        lines = wording.things(history.malformed, "line")
        notes.append(f"{lines} of the event log could not be understood.")
    if len(history.hosts) > 1:
        notes.append("Times between hosts are as exact as their clocks agree.")
    return notes

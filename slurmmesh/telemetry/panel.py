"""What the live view and the final table look like: rich renderables of a history. Pure.

Text in here is plain ASCII and never read as markup: terminals of other encodings show it, and
a host called ``[red]`` stays that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from slurmmesh.telemetry import wording
from slurmmesh.telemetry.fields import finite
from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.phases import DURATIONS
from slurmmesh.telemetry.records import Replica, Run
from slurmmesh.telemetry.summary import losses_by_step

_STATES = {
    "starting": ("starting", "dim"),
    "training": ("training", "green"),
    "healing": ("healing", "yellow"),
    "down": ("down", "bold red"),
    "detected": ("down, noticed", "red"),
    "decided": ("restarting", "yellow"),
    "respawned": ("joining", "yellow"),
    "rendezvoused": ("healing", "yellow"),
    "healed": ("first step", "yellow"),
    "finished": ("finished", "blue"),
}
_SPARK = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48


class _Sparkline:
    """The loss as a row of small bars; nothing where the terminal cannot show them."""

    def __init__(self, values: Sequence[float]) -> None:
        self._values = values

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        if options.ascii_only or len(self._values) < 2:
            return
        low, high = min(self._values), max(self._values)
        if not math.isfinite(high - low):
            return
        scale = (len(_SPARK) - 1) / (high - low) if high > low else 0.0
        bars = "".join(_SPARK[round((value - low) * scale)] for value in self._values)
        yield Text(bars, style="cyan", no_wrap=True)


def live_view(
    history: RunHistory, recent: Sequence[str], now: float, rows: int = 16
) -> RenderableType:
    """Return the live view.

    Args:
        recent: the last lines told about the job, oldest first.
        now: seconds since the epoch.
        rows: replicas shown at most; those in trouble come first.
    """
    parts: list[RenderableType] = [_job_line(history)]
    if history.has_run:
        parts += [_progress(history.run), _counters(history), _Sparkline(_loss_curve(history))]
        parts.append(_replica_table(history.run, rows))
    parts += [Text(line, style="dim", no_wrap=True, overflow="ellipsis") for line in recent]
    since = 0.0 if history.first_t is None else max(0.0, now - history.first_t)
    return Panel(
        Group(*parts),
        title=Text(f"slurmmesh job {wording.one_line(history.job_id or '?', 60)}"),
        subtitle=Text(f"running for {int(since) // 60}:{int(since) % 60:02d}"),
        title_align="left",
        subtitle_align="right",
    )


def final_table(history: RunHistory, summary: dict[str, Any]) -> RenderableType:
    """Return the closing tables: the figures of the run, and how long its faults took.

    ``summary`` is what :func:`slurmmesh.telemetry.summary.summarize` made of the history.
    """
    title = Text(f"job {wording.one_line(str(summary['job_id'] or '?'), 60)}")
    facts = Table(title=title, show_header=False)
    facts.add_column("")
    facts.add_column("", justify="right")
    if not history.has_run:
        for name, value in (
            ("hosts", len(history.hosts)),
            ("processes that died", sum(not end.expected for end in history.exits)),
            ("exit code", "-" if history.exit_code is None else history.exit_code),
        ):
            facts.add_row(name, str(value))
        return facts
    wanted = history.run.steps_wanted
    steps = f"{summary['steps']}" if wanted is None else f"{summary['steps']} of {wanted}"
    for name, text in (
        ("status", summary["status"]),
        ("committed steps", steps),
        ("wall time", wording.seconds(summary["wall_s"])),
        ("first loss", wording.loss(summary["first_loss"])),
        ("final loss", wording.loss(summary["final_loss"])),
        ("replicas", str(summary["replicas"])),
        ("faults", str(summary["faults"])),
        ("victims back in training", str(summary["recovered"])),
        ("full restarts", str(summary["full_restarts"])),
        ("replica availability", wording.share(summary["replica_availability"])),
    ):
        facts.add_row(name, Text(wording.one_line(text)))
    if not summary["faults"] and not history.run.recoveries:
        return facts
    return Group(facts, _times_table(summary))


def _times_table(summary: dict[str, Any]) -> Table:
    table = Table(title="time lost to faults")
    table.add_column("")
    for name in ("p50", "p95", "p99", "n"):
        table.add_column(name, justify="right")
    rows = [("survivors' next commit", summary["survivor_stall_s"])]
    rows.append(("victim takes part again", summary["replica_back_s"]))
    rows += [
        (f"  {name[:-2].replace('_', ' ')}", summary["phases"][name])
        for name in DURATIONS
        if summary["phases"][name]["n"]
    ]
    for name, figures in rows:
        times = [wording.seconds(figures[percent]) for percent in ("p50", "p95", "p99")]
        table.add_row(name, *times, str(figures["n"]))
    return table


def _job_line(history: RunHistory) -> Text:
    up = sum(host.up for host in history.hosts.values())
    wanted = (history.nodes or 0) + (history.spares or 0)
    died = sum(not end.expected for end in history.exits)
    hosts = f"{up}/{wanted}" if wanted else f"{up}"
    line = Text(f"{history.cluster or 'job'}   hosts {hosts}   processes {history.proc_count}")
    line.append(f"   deaths {died}", style="red" if died else "")
    return line


def _progress(run: Run) -> RenderableType:
    step = run.latest.step if run.latest else 0
    if not run.steps_wanted:
        return Text(f"step {step}", style="bold")
    row = Table.grid(padding=(0, 1))
    bar = ProgressBar(total=run.steps_wanted, completed=min(step, run.steps_wanted), width=40)
    row.add_row(Text(f"step {step}/{run.steps_wanted}", style="bold"), bar)
    return row


def _counters(history: RunHistory) -> Text:
    run, latest = history.run, history.run.latest
    taking_part = latest.participants if latest else None
    line = Text()
    line.append(f"loss {wording.loss(latest.loss if latest else None)}   ", style="bold")
    # What the last commit said may be older than a death since.
    away = any(own.state not in ("training", "finished") for own in run.replicas.values())
    short = away or (taking_part is not None and taking_part < run.size)
    line.append(
        f"participants {'-' if taking_part is None else taking_part}/{run.size}",
        style="yellow" if short else "green",
    )
    if latest and latest.quorum is not None:
        line.append(f"   quorum {latest.quorum}")
    line.append(f"   faults {len(run.faults)}")
    done = [recovery for recovery in run.recoveries.values() if recovery.complete]
    line.append(f"   recovered {len(done)}")
    if done:
        last = max(done, key=lambda recovery: max(recovery.times.values(), default=0.0))
        line.append(f" (last in {wording.seconds(last.duration('total_s'))})", style="dim")
    return line


def _loss_curve(history: RunHistory) -> list[float]:
    """The mean loss of the last steps, as many as the sparkline is wide."""
    by_step = losses_by_step(history, last=_SPARK_WIDTH)
    means = [finite(sum(own) / len(own)) for own in by_step.values()]
    return [mean for mean in means if mean is not None]


def _replica_table(run: Run, rows: int) -> RenderableType:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("replica", "state", "step", "loss", "deaths"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    in_trouble_first = sorted(
        run.replicas.values(),
        key=lambda own: (own.state in ("training", "finished"), own.index),
    )
    shown = sorted(in_trouble_first[:rows], key=lambda own: own.index)
    for replica in shown:
        word, style = _STATES.get(replica.state, (replica.state, ""))
        table.add_row(
            str(replica.index),
            Text(word, style=style),
            _step_text(run, replica),
            wording.loss(_last_loss(replica)),
            Text(str(replica.deaths), style="red" if replica.deaths else "dim"),
        )
    left = len(run.replicas) - len(shown)
    if left == 0:
        return table
    return Group(table, Text(f"and {left} more that train or have finished", style="dim"))


def _step_text(run: Run, replica: Replica) -> str:
    step = replica.steps[-1].step if replica.steps else 0
    last = replica.inner[-1] if replica.inner else None
    if last is None or run.sync_every is None or last.step < step:
        return str(step)
    return f"{step} +{last.inner}/{run.sync_every}"


def _last_loss(replica: Replica) -> float | None:
    if replica.inner and (not replica.steps or replica.inner[-1].t > replica.steps[-1].t):
        return replica.inner[-1].loss
    return replica.steps[-1].loss if replica.steps else None

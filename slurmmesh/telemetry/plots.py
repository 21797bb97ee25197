"""The plots of a report, as PNG. matplotlib is imported when the first one is drawn.

Each plot is drawn for a light and for a dark page. Colours are Okabe and Ito's, which stay apart
for colour-blind eyes; where a colour carries meaning, so does a position, a mark or a label.
"""

from __future__ import annotations

import bisect
import io
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from slurmmesh.errors import MissingDependencyError
from slurmmesh.telemetry import wording
from slurmmesh.telemetry.fields import finite
from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.outages import Timeline
from slurmmesh.telemetry.phases import DURATIONS
from slurmmesh.telemetry.records import Recovery
from slurmmesh.telemetry.summary import losses_by_step

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_RECOVERIES = 20
"""Recoveries in the bar plot; of more, the slowest are shown."""

_MOST_LANES = 64
_WIDTH = 9.0
_DPI = 150


@dataclass(frozen=True)
class _Theme:
    """Colours of one kind of page."""

    ink: str
    faint: str
    grid: str
    main: str
    fault: str
    phases: tuple[str, ...]


_LIGHT = _Theme(
    ink="#1f2328",
    faint="#59636e",
    grid="#d8dee4",
    main="#0072B2",
    fault="#D55E00",
    phases=("#D55E00", "#E6C700", "#CC79A7", "#56B4E9", "#0072B2", "#009E73"),
)
_DARK = _Theme(
    ink="#e6edf3",
    faint="#9198a1",
    grid="#30363d",
    main="#56B4E9",
    fault="#FF8A3D",
    phases=("#E8702A", "#F0E442", "#DB8FBA", "#7CC7F0", "#2F8FCB", "#12B886"),
)


@dataclass(frozen=True)
class Plot:
    """One plot in both themes, as PNG bytes, and in words for those who cannot see it."""

    title: str
    alt: str
    light: bytes
    dark: bytes


def draw(history: RunHistory, baseline: RunHistory | None = None) -> list[Plot]:
    """Return the plots a history has data for: participants, loss, recoveries.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingDependencyError(
            "plots need matplotlib: pip install 'slurmmesh[report]'"
        ) from error
    timeline = Timeline(history)
    plots = []
    if timeline.bounds is not None and history.run.replicas:
        plots.append(_participants(history, timeline))
    if losses_by_step(history):
        plots.append(_loss(history, baseline))
    shown = _shown_recoveries(history)
    if shown:
        plots.append(_recoveries(history, shown))
    return plots


def _both(title: str, alt: str, height: float, paint: Callable[[Figure, _Theme], None]) -> Plot:
    """Draw a figure once a theme. Transparent: the page's own background shows."""
    from matplotlib.figure import Figure

    images = []
    for theme in (_LIGHT, _DARK):
        figure = Figure(figsize=(_WIDTH, height), dpi=_DPI, layout="constrained")
        paint(figure, theme)
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png", transparent=True, metadata={"Software": None})
        images.append(buffer.getvalue())
    return Plot(title, alt, *images)


def _style(axes: Axes, theme: _Theme, x: str, y: str, grid: str = "y") -> None:
    axes.set_xlabel(x, color=theme.faint)
    axes.set_ylabel(y, color=theme.faint)
    axes.tick_params(colors=theme.faint, length=3)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(theme.grid)
    axes.grid(axis=grid, color=theme.grid, linewidth=0.8)  # type: ignore[arg-type]
    axes.set_axisbelow(True)


def _legend(axes: Axes, theme: _Theme, columns: int) -> None:
    axes.legend(
        loc="lower left",
        bbox_to_anchor=(0, 1.0),
        ncols=columns,
        frameon=False,
        labelcolor=theme.ink,
        fontsize="small",
        borderaxespad=0.2,
        handlelength=2.0,
        columnspacing=1.4,
    )


def _participants(history: RunHistory, timeline: Timeline) -> Plot:
    from matplotlib.ticker import MaxNLocator

    assert timeline.bounds is not None
    start, end = timeline.bounds
    size = history.run.size
    points = timeline.participation
    lanes = timeline.lanes if len(timeline.lanes) <= _MOST_LANES else {}
    faults = [fault for fault in history.run.faults if start <= fault.t <= end]

    def paint(figure: Figure, theme: _Theme) -> None:
        lane_height = min(2.6, 0.22 * len(lanes) + 0.3)
        if lanes:
            top, bottom = figure.subplots(
                2, 1, sharex=True, gridspec_kw={"height_ratios": (2.2, lane_height)}
            )
        else:
            top = bottom = figure.subplots()
        times = [t - start for t, _ in points]
        counts = [count for _, count in points]
        top.fill_between(times, counts, step="post", color=theme.main, alpha=0.18, linewidth=0)
        top.step(times, counts, where="post", color=theme.main, linewidth=1.8,
                 label="replicas taking part")  # fmt: skip
        for fault in faults:
            top.axvline(fault.t - start, color=theme.fault, linewidth=0.8, alpha=0.5)
        top.plot([fault.t - start for fault in faults], [size * 1.08] * len(faults), "v",
                 color=theme.fault, markersize=6, clip_on=False,
                 label=f"fault ({len(faults)})")  # fmt: skip
        top.set_ylim(0, size * 1.08)
        top.set_xlim(0, max(end - start, 1e-6))
        top.yaxis.set_major_locator(MaxNLocator(integer=True))
        _style(top, theme, "" if lanes else "seconds since the start of the run", "replicas")
        _legend(top, theme, 2)
        if not lanes:
            return
        for row, (index, spans) in enumerate(lanes.items()):
            bars = [(since - start, until - since) for since, until in spans]
            bottom.broken_barh(bars, (row - 0.32, 0.64), color=theme.main, alpha=0.8, linewidth=0)
            hits = [fault.t - start for fault in faults if fault.replica == index]
            bottom.plot(hits, [row] * len(hits), "x", color=theme.fault, markersize=6,
                        markeredgewidth=1.8)  # fmt: skip
        every = math.ceil(len(lanes) / 16)
        bottom.set_yticks(range(0, len(lanes), every), list(lanes)[::every])
        bottom.set_ylim(len(lanes) - 0.4, -0.6)
        _style(bottom, theme, "seconds since the start of the run", "replica", grid="x")
        bottom.tick_params(axis="y", length=0)
        figure.align_ylabels((top, bottom))

    most = max(count for _, count in points)
    full = next(position for position, point in enumerate(points) if point[1] == most)
    lowest = min(count for _, count in points[full:])
    alt = (
        f"Replicas taking part over {wording.seconds(end - start)}: at most {most} of {size}, and "
        f"at least {lowest} from then on; {wording.things(len(faults), 'fault')} marked."
    )
    height = 2.6 + (min(2.8, 0.22 * len(lanes) + 0.5) if lanes else 0)
    return _both("Participants over time", alt, height, paint)


def _curve(history: RunHistory) -> tuple[list[int], list[float], list[float], list[float]]:
    """Step, mean, lowest and highest finite loss of each committed step."""
    steps, means, lows, highs = [], [], [], []
    for step, losses in losses_by_step(history).items():
        known = [loss for loss in losses if finite(loss) is not None]
        mean = finite(sum(known) / len(known)) if known else None
        if mean is not None:
            steps.append(step)
            means.append(mean)
            lows.append(min(known))
            highs.append(max(known))
    return steps, means, lows, highs


def _steps_at(history: RunHistory, times: list[float]) -> list[int]:
    """The highest step committed by anyone up to each of these times."""
    commits = sorted((s.t, s.step) for own in history.run.replicas.values() for s in own.steps)
    highest = [0, *itertools.accumulate((step for _, step in commits), max)]
    when = [t for t, _ in commits]
    return [highest[bisect.bisect_right(when, t)] for t in times]


def _loss(history: RunHistory, baseline: RunHistory | None) -> Plot:
    from matplotlib.ticker import MaxNLocator

    steps, means, lows, highs = _curve(history)
    other = _curve(baseline) if baseline is not None else ([], [], [], [])
    hit_at = _steps_at(history, [fault.t for fault in history.run.faults])

    def paint(figure: Figure, theme: _Theme) -> None:
        axes = figure.subplots()
        axes.fill_between(steps, lows, highs, color=theme.main, alpha=0.2, linewidth=0)
        marker = "o" if len(steps) == 1 else None
        axes.plot(steps, means, color=theme.main, linewidth=1.8, marker=marker,
                  label="mean over replicas (band: lowest to highest)")  # fmt: skip
        if other[0]:
            # Above the run's own curve: where both agree, both are seen.
            axes.plot(
                other[0],
                other[1],
                color=theme.ink,
                linewidth=1.2,
                linestyle=(0, (3, 3)),
                label="no-fault baseline",
            )
        if hit_at:
            axes.plot(hit_at, [0.015] * len(hit_at), "^", color=theme.fault, markersize=6,
                      transform=axes.get_xaxis_transform(), clip_on=False,
                      label=f"fault ({len(hit_at)})")  # fmt: skip
        axes.margins(x=0.01)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _style(axes, theme, "committed step", "loss")
        _legend(axes, theme, 3)

    alt = "Loss over committed steps"
    if means:
        alt += f", from {wording.loss(means[0])} to {wording.loss(means[-1])}"
    if other[1]:
        alt += f"; the baseline from {wording.loss(other[1][0])} to {wording.loss(other[1][-1])}"
    return _both("Loss over steps", alt + ".", 3.4, paint)


def _shown_recoveries(history: RunHistory) -> list[Recovery]:
    """The complete recoveries in the plot: all, or the slowest, in order of their ids."""
    complete = [own for own in history.run.recoveries.values() if own.complete and any(_parts(own))]
    complete.sort(key=lambda own: own.duration("total_s") or sum(_parts(own)), reverse=True)
    return sorted(complete[:MOST_RECOVERIES], key=lambda own: own.id)


def _parts(recovery: Recovery) -> list[float]:
    return [recovery.duration(name) or 0.0 for name in DURATIONS]


def _recoveries(history: RunHistory, shown: list[Recovery]) -> Plot:
    of = sum(own.complete for own in history.run.recoveries.values())
    slowest = max(sum(_parts(own)) for own in shown)
    unit, scale = ("milliseconds", 1000.0) if slowest < 2 else ("seconds", 1.0)

    def paint(figure: Figure, theme: _Theme) -> None:
        axes = figure.subplots()
        rows = range(len(shown))
        left = [0.0] * len(shown)
        for position, name in enumerate(DURATIONS):
            widths = [_parts(own)[position] * scale for own in shown]
            axes.barh(rows, widths, left=left, height=0.66, color=theme.phases[position],
                      label=name[:-2].replace("_", " "), linewidth=0)  # fmt: skip
            left = [a + b for a, b in zip(left, widths, strict=True)]
        for row, total in enumerate(left):
            axes.annotate(
                wording.seconds(total / scale),
                (total, row),
                xytext=(5, 0),
                textcoords="offset points",
                va="center",
                color=theme.ink,
                fontsize="small",
            )
        labels = [
            f"#{own.id}  replica {'?' if own.replica is None else own.replica}" for own in shown
        ]
        axes.set_yticks(rows, labels)
        axes.set_ylim(len(shown) - 0.4, -0.6)
        axes.set_xlim(0, max(left) * 1.1)
        _style(axes, theme, f"{unit} since the replica died", "", grid="x")
        axes.tick_params(axis="y", length=0)
        _legend(axes, theme, len(DURATIONS))

    title = "Where the time of a recovery goes"
    if of > len(shown):
        title += f" (the {len(shown)} slowest of {of})"
    alt = f"{len(shown)} recoveries, each split into its phases; the slowest took "
    alt += f"{wording.seconds(slowest)}. The table of recoveries has the figures."
    return _both(title, alt, 1.1 + 0.3 * len(shown), paint)

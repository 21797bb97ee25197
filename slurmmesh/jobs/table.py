"""Tables of jobs as sacct prints them: which fields, how wide, and how each is written. Pure."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from slurmmesh.config import near
from slurmmesh.errors import UsageError
from slurmmesh.jobs.views import View
from slurmmesh.slurm.times import format_time
from slurmmesh.telemetry.wording import one_line

Value = str | int | float | None
_FORMAT = re.compile(r"(\w+)(?:%(-?\d{1,4}))?", re.ASCII)


@dataclass(frozen=True)
class Field:
    """A column.

    Attributes:
        width: characters, unless another width is given; negative for text at the left edge.
        value: what ``--json`` has: plain, seconds for times.
        text: how a table has it.
    """

    name: str
    width: int
    value: Callable[[View, float], Value]
    text: Callable[[Any], str] = lambda value: "" if value is None else str(value)


def _moment(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds):
        return "Unknown"
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(seconds))


def _exit_code(view: View) -> str:
    """As sacct has it: ``code:signal``; of a program whose end nobody tells, nothing."""
    info, code = view.info, view.status.exit_code
    if code is None and info and view.status.state.is_over:
        return f"{info.exit_code}:{info.signal}"
    if code is None:
        return ""
    signal = code - 128 if 128 < code < 128 + 65 else 0
    return f"0:{signal}" if signal else f"{code}:0"


def _reason(view: View) -> str:
    """Slurm's own word for why it waits or ended."""
    reason = view.info.reason if view.info else ""
    return "" if reason == "None" else reason


def _finite(seconds: float | None) -> float | None:
    return None if seconds is None or not math.isfinite(seconds) else seconds


_table = (
    Field("JobID", -14, lambda view, now: view.id),
    Field("JobName", 16, lambda view, now: view.job.name),
    Field("State", 10, lambda view, now: view.status.state.value),
    Field("NNodes", 6, lambda view, now: view.nodes),
    Field("Elapsed", 11, lambda view, now: view.elapsed(now), format_time),
    Field("Start", 19, lambda view, now: view.started, _moment),
    Field("ExitCode", 8, lambda view, now: _exit_code(view)),
    Field("Why", -60, lambda view, now: view.status.why),
    Field("Reason", 22, lambda view, now: _reason(view)),
    Field("End", 19, lambda view, now: view.ended, _moment),
    Field("Submit", 19, lambda view, now: view.submitted, _moment),
    Field("Timelimit", 11, lambda view, now: _finite(view.time_limit), format_time),
    Field("NodeList", 15, lambda view, now: view.status.nodes),
    Field("Restarts", 8, lambda view, now: view.status.restarts),
    Field("Partition", 10, lambda view, now: view.info.partition if view.info else ""),
    Field("Account", 10, lambda view, now: view.info.account if view.info else ""),
    Field("QOS", 10, lambda view, now: view.info.qos if view.info else ""),
    Field("Cluster", 10, lambda view, now: "local" if view.job.is_local else view.job.ref.cluster),
    Field("Program", 24, lambda view, now: _program(view)),
    Field("Folder", -40, lambda view, now: str(view.job.folder)),
)  # fmt: skip
FIELDS = {field.name.lower(): field for field in _table}
USUAL = "JobID,JobName,State,NNodes,Elapsed,Start,ExitCode,Why"


def _program(view: View) -> str:
    argv = view.job.submission.get("argv")
    words = argv if isinstance(argv, list) else view.record.argv if view.record else ()
    return " ".join(map(str, words))


def parse_format(text: str) -> list[tuple[Field, int]]:
    """The columns of ``JobID%20,State,Reason%-50``: each with its width, negative for left.

    Raises:
        UsageError: there is no such field; names those that are like it.
    """
    columns = []
    for item in text.split(","):
        match = _FORMAT.fullmatch(item.strip())
        if not match:
            raise UsageError(f"--format {item!r}: give FIELD or FIELD%WIDTH, such as JobName%30")
        field = FIELDS.get(match[1].lower())
        if field is None:
            names = [field.name for field in FIELDS.values()]
            hint = near(match[1], names, f"there are {', '.join(names)}")
            raise UsageError(f"--format: there is no field {match[1]!r}: {hint}")
        width = int(match[2]) if match[2] else field.width
        columns.append((field, width or field.width))
    return columns


def fit_ids(
    views: Iterable[View], columns: Sequence[tuple[Field, int]], text: str
) -> list[tuple[Field, int]]:
    """The columns of the format ``text``, where ids without a width get the room they need."""
    longest = max((len(view.id) for view in views), default=0)
    return [
        (field, -max(longest, -width))
        if field.name == "JobID" and "%" not in item
        else (field, width)
        for (field, width), item in zip(columns, text.split(","), strict=True)
    ]


def lines(
    views: Iterable[View], columns: Sequence[tuple[Field, int]], now: float, header: bool = True
) -> list[str]:
    """The table. What is too long for its column ends with ``+``."""
    found = []
    if header:
        found.append(_row((field.name for field, _ in columns), columns))
        found.append(" ".join("-" * abs(width) for _, width in columns))
    for view in views:
        found.append(_row((field.text(field.value(view, now)) for field, _ in columns), columns))
    return found


def as_data(view: View, now: float) -> dict[str, Value]:
    """A job as ``--json`` has it: all fields by their names in small letters."""
    return {name: field.value(view, now) for name, field in FIELDS.items()}


def _row(cells: Iterable[str], columns: Sequence[tuple[Field, int]]) -> str:
    fitted = (fit(cell, width) for cell, (_, width) in zip(cells, columns, strict=True))
    return " ".join(fitted).rstrip()


def fit(text: str, width: int) -> str:
    """Text in so many characters, at the right edge, or at the left if ``width`` is negative."""
    clean, room = one_line(text, max(4, len(text))), abs(width)
    if len(clean) > room:
        clean = clean[: room - 1] + "+"
    return clean.ljust(room) if width < 0 else clean.rjust(room)

"""Writes the report of a run: ``report.html``, ``summary.json`` and its event log, in one folder.

slurmmesh report JOB [--out DIR] [--baseline DIR]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from slurmmesh import folders
from slurmmesh.errors import MissingDependencyError, ReportError, SlurmmeshError, UsageError
from slurmmesh.telemetry import page, plots, wording
from slurmmesh.telemetry.files import copy_whole, make_folder, write_whole
from slurmmesh.telemetry.history import RunHistory
from slurmmesh.telemetry.summary import summarize
from slurmmesh.telemetry.tail import EventTail, find_event_log


def read_history(events_path: Path | str) -> RunHistory:
    """Return the history of an event log, or of the one in a folder.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    path = find_event_log(events_path)
    history, tail = RunHistory(), EventTail(path)
    while True:
        try:
            events = tail.read()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror}") from error
        for event in events:
            history.add(event)
        if tail.at_end:
            break
    history.malformed += tail.malformed
    return history


def make_writable(folder: Path | str) -> Path:
    """Make a folder for a report if it is not there, and see that it can be written to.

    To be asked before a long training whose report goes there.

    Raises:
        ReportError: it cannot be made or written to.
    """
    folder = Path(folder)
    make_folder(folder)
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise ReportError(
            f"cannot write to the folder {folder}: {error.strerror}. Give another one"
        ) from error
    return folder


def write_report(
    events_path: Path | str, out_dir: Path | str, baseline: Path | str | None = None
) -> Path:
    """Write report.html, summary.json and a copy of the event log; return the page's path.

    Without matplotlib the page has no plots and says how to get them. Files that are there
    already are replaced, each at once.

    Args:
        events_path: an event log, or a job folder with one.
        out_dir: the folder to write into; made if it is not there. May be the log's own.
        baseline: the same training without faults, to compare with: an event log, or a folder
            with one, or a folder with a ``summary.json`` alone (then its loss curve is missing).

    Raises:
        UsageError: an event log is not there or cannot be read.
        ReportError: ``out_dir`` cannot be written to, or is full.
    """
    source, folder = find_event_log(events_path), Path(out_dir)
    history = read_history(source)
    summary = summarize(history)
    other_history, other_summary = (None, None) if baseline is None else _baseline(Path(baseline))
    notes = []
    try:
        drawn = plots.draw(history, other_history)
    except MissingDependencyError as error:
        drawn = []
        notes.append(f"This page has no plots: {error}")
    html = page.render(history, summary, drawn, other_summary, notes)
    make_folder(folder)
    if baseline is not None:
        summary["baseline"] = str(Path(baseline).absolute())
    copy_whole(source, folder / "events.jsonl")
    write_whole(folder / "summary.json", _json(summary))
    write_whole(folder / "report.html", html.encode())
    return folder / "report.html"


def _json(summary: dict[str, Any]) -> bytes:
    return (json.dumps(summary, indent=2, allow_nan=False) + "\n").encode()


def _baseline(place: Path) -> tuple[RunHistory | None, dict[str, Any]]:
    """The history of the baseline, if its log is there, and its summary."""
    place = folders.latest_attempt(place)
    summary_path = place / "summary.json"
    if not summary_path.is_file() or (place / "events.jsonl").is_file():
        history = read_history(place)
        return history, summarize(history)
    try:
        summary = json.loads(summary_path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"cannot read the baseline's {summary_path}: {error}") from error
    if not isinstance(summary, dict) or "final_loss" not in summary:
        raise UsageError(f"{summary_path} is no summary of a run")
    return None, summary


def _remembered_baseline(folder: Path) -> str | None:
    """What an earlier report in the log's folder was compared with, if it is still there."""
    try:
        summary = json.loads((folder / "summary.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    place = summary.get("baseline") if isinstance(summary, dict) else None
    if not isinstance(place, str):
        return None
    if any(
        (folders.latest_attempt(Path(place)) / name).is_file()
        for name in ("", "events.jsonl", "summary.json")
    ):
        return place
    print(
        f"report: left out the earlier comparison: the baseline {wording.one_line(place)} is gone; "
        "--baseline names another",
        file=sys.stderr,
    )
    return None


def _place(text: str) -> Path:
    """A path, or for a job's id its folder: in the usual root, or where the user's index says.

    Raises:
        UsageError: it is the id of no job that is known, or of a whole array.
    """
    job_id = text.partition(";")[0]
    if os.path.lexists(text):
        place = Path(text)
    elif folders.is_job_id(job_id):
        root = Path(os.environ.get("SLURMMESH_JOB_ROOT") or "slurmmesh-jobs").absolute()
        found = folders.find(job_id, root)
        if found is None:
            raise UsageError(
                f"no job {text!r} of slurmmesh's is in {root}, nor in your index: "
                "`slurmmesh list` shows those that are; a job's folder can be given, too"
            )
        place = found
    else:
        return Path(text)
    options = folders.submission(place).get("options")
    if isinstance(options, dict) and "array" in options:
        raise UsageError(f"{place.name} is an array: name one of its tasks")
    return place


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; return its exit code."""
    parser = argparse.ArgumentParser(
        prog="slurmmesh report",
        description="Write the report of a job: report.html, summary.json and its event log.",
    )
    parser.add_argument("job", metavar="JOB", help="a job's folder or id, or an events.jsonl")
    parser.add_argument("--out", metavar="DIR", help="where to write (default: beside the log)")
    parser.add_argument(
        "--baseline",
        metavar="DIR",
        help="the same run without faults (default: that of the report before)",
    )
    arguments = parser.parse_args(argv)
    try:
        log = find_event_log(_place(arguments.job))
        baseline = arguments.baseline or _remembered_baseline(log.parent)
        print(write_report(log, arguments.out or log.parent, baseline))
    except SlurmmeshError as error:
        print(f"report: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())

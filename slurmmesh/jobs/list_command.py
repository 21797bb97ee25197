"""``slurmmesh list``: the user's jobs, running, waiting and ended."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
from collections.abc import Sequence

from slurmmesh.errors import EXIT_OK, UsageError
from slurmmesh.jobs import door
from slurmmesh.jobs.families import newest
from slurmmesh.jobs.known import all_jobs
from slurmmesh.jobs.since import parse_since
from slurmmesh.jobs.table import FIELDS, USUAL, Field, as_data, fit_ids, lines, parse_format
from slurmmesh.jobs.views import Slurm, View, view_jobs
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.states import JobState
from slurmmesh.submit.door import Parser, run
from slurmmesh.submit.output import tell, write

_USUAL_LIMIT = 50
_NARROWEST = 20


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return run(_main, argv)


def _main(argv: Sequence[str]) -> int:
    asked = _parser().parse_args(list(argv))
    if asked.helpformat:
        write("".join(f"{field.name}\n" for field in FIELDS.values()))
        return EXIT_OK
    columns = parse_format(asked.format or USUAL)
    states = door.states_of(asked.state)
    now = time.time()
    since = parse_since(asked.since, now) if asked.since else None
    settings, root = door.settings_of(asked)
    limit = None if asked.all else asked.limit if asked.limit is not None else _USUAL_LIMIT
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: give 1 or more, or --all")
    jobs = all_jobs(root)
    slurm = Slurm(SlurmClient(settings))
    # With a filter the newest that fit may be anywhere.
    if states or since is not None or limit is None:
        left_out = 0
        slurm.ask(jobs)
    else:
        jobs, left_out = newest(jobs, limit, slurm)
    views = [view for view in view_jobs(jobs, slurm) if _fits(view, states, since)]
    views.sort(key=lambda view: view.job.made)
    if limit is not None:
        running = [view for view in views[:-limit] if not view.is_over]
        left_out += len(views[:-limit]) - len(running)
        views = [*running, *views[-limit:]]
    columns = fit_ids(views, columns, asked.format or USUAL)
    if not asked.format:
        columns = _fitting_the_terminal(columns)
    _show(views, columns, asked, now)
    for cluster, reason in slurm.silent.items():
        where = f" of cluster {cluster}" if cluster else ""
        tell(f"{reason}{where}; this is from the job folders")
    if left_out and not asked.json:
        tell(f"{left_out} earlier are not shown: --all shows them, --limit N so many")
    return EXIT_OK


def _fitting_the_terminal(columns: list[tuple[Field, int]]) -> list[tuple[Field, int]]:
    """The last column gets what is left of a terminal's line."""
    if sys.stdout is None or not sys.stdout.isatty():
        return columns
    used = sum(abs(width) + 1 for _, width in columns[:-1])
    last = max(_NARROWEST, shutil.get_terminal_size().columns - used)
    return [*columns[:-1], (columns[-1][0], -last)]


def _fits(view: View, states: frozenset[JobState], since: float | None) -> bool:
    if states and view.status.state not in states:
        return False
    # As sacct: whatever was there at that time or later.
    last = view.ended or view.started or view.submitted or view.job.changed
    return since is None or not view.is_over or last >= since


def _show(
    views: Sequence[View],
    columns: Sequence[tuple[Field, int]],
    asked: argparse.Namespace,
    now: float,
) -> None:
    if asked.json:
        found = {"jobs": [as_data(view, now) for view in views]}
        write(json.dumps(found, indent=1, allow_nan=False) + "\n")
        return
    table = lines(views, columns, now, header=not asked.noheader)
    write("".join(f"{line}\n" for line in table))


def _parser() -> Parser:
    parser = door.parser_of(
        "list",
        "The jobs of slurmmesh in the root of job folders and in your index, oldest first. "
        "Slurm's word counts while it knows a job, then the record in its folder.",
    )
    parser.add_argument("-s", "--state", action="append", metavar="STATES", help="only these")
    parser.add_argument("-S", "--since", metavar="TIME", help="only what was there since then")
    parser.add_argument(
        "-l", "--limit", type=int, metavar="N", help=f"the N newest ({_USUAL_LIMIT})"
    )
    parser.add_argument("-a", "--all", action="store_true", help="all, however old")
    parser.add_argument("-o", "--format", metavar="FIELDS", help=f"FIELD[%%WIDTH],... ({USUAL})")
    parser.add_argument("-e", "--helpformat", action="store_true", help="list the fields")
    parser.add_argument("-n", "--noheader", action="store_true", help="no header")
    parser.add_argument("--json", action="store_true", help="all fields, as JSON")
    return parser

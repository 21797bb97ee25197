"""``slurmmesh status``: how jobs are, from Slurm, their folders and their event logs."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence

from slurmmesh.errors import EXIT_OK
from slurmmesh.jobs import door, table, words
from slurmmesh.jobs.known import newest
from slurmmesh.jobs.overview import Overview, as_data, read_overview
from slurmmesh.jobs.views import Slurm, View, find_all, view_job
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.submit.door import Parser, run
from slurmmesh.submit.output import tell, write


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return run(_main, argv)


def _main(argv: Sequence[str]) -> int:
    asked = _parser().parse_args(list(argv))
    settings, root = door.settings_of(asked)
    slurm = Slurm(SlurmClient(settings))
    jobs = find_all(asked.jobs, root, slurm) if asked.jobs else [newest(root)]
    slurm.ask(jobs)
    now = time.time()
    views = [view for job in jobs for view in view_job(job, slurm)]
    for cluster, reason in slurm.silent.items():
        where = f" of cluster {cluster}" if cluster else ""
        tell(f"{reason}{where}; this is from the job folders")
    found = [(view, _overview(view)) for view in views]
    if asked.json:
        data = [{**table.as_data(view, now), **as_data(over)} for view, over in found]
        write(json.dumps({"jobs": data}, indent=1, allow_nan=False) + "\n")
    else:
        write(words.join(words.tell(view, overview, now) for view, overview in found))
    return EXIT_OK


def _overview(view: View) -> Overview:
    """A job that has not started has no events, but maybe those of an attempt before."""
    return read_overview(view.job.attempts[-1])


def _parser() -> Parser:
    parser = door.parser_of(
        "status",
        "How jobs are: state and why, nodes, meshes, training, recent failures.",
    )
    parser.add_argument(
        "jobs",
        metavar="JOB",
        nargs="*",
        help="an id (123, 123_4, 123;cluster, local-...) or a job's folder; the newest if none",
    )
    parser.add_argument("--json", action="store_true", help="the same as JSON")
    return parser

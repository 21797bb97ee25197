"""``slurmmesh logs``: what a job writes, from all its hosts, as it comes."""

from __future__ import annotations

import argparse
import select
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from slurmmesh import folders
from slurmmesh.errors import EXIT_OK, UsageError
from slurmmesh.jobs import door
from slurmmesh.jobs.ending import Ending
from slurmmesh.jobs.known import KnownJob, newest
from slurmmesh.jobs.log_files import LogFiles
from slurmmesh.jobs.log_lines import Selection, for_terminal, parse_ranks
from slurmmesh.jobs.views import Slurm, find_all
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.hostlists import expand
from slurmmesh.slurm.status import tasks_with_folders
from slurmmesh.submit.door import Parser, run
from slurmmesh.submit.output import EXIT_READER_GONE, tell, write_bytes

_LOOK_EVERY_S = 0.2
# Pieces of each file that are taken in one look, so that a flood does not keep us from the rest.
_CHUNKS_A_LOOK = 16
_WRITE_BYTES = 1 << 16


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return run(_main, argv)


def _main(argv: Sequence[str]) -> int:
    asked = _parser().parse_args(list(argv))
    wanted = _selection(asked)
    if asked.tail is not None and asked.tail < 0:
        raise UsageError(f"--tail {asked.tail}: give 0 or more")
    if asked.follow and asked.attempt is not None:
        raise UsageError("--follow shows the last attempt: leave out --attempt")
    settings, root = door.settings_of(asked)
    client = SlurmClient(settings)
    job = find_all([asked.job], root, Slurm(client))[0] if asked.job is not None else newest(root)
    job = _one_task(job)
    if asked.follow:
        return _follow(job, wanted, asked.tail, Ending(job, client))
    attempt = _attempt(job, asked.attempt)
    logs = LogFiles(attempt, wanted, asked.tail)
    _write(logs.read())
    _write(logs.rest())
    if logs.is_empty:
        tell(f"job {job.id} has written nothing yet: there are no logs in {attempt}")
    return EXIT_OK


def _follow(job: KnownJob, wanted: Selection, last: int | None, ending: Ending) -> int:
    attempt = job.attempts[-1]
    logs = LogFiles(attempt, wanted, last)
    told = ""
    while True:
        # Asked before reading: what a job that is over wrote is then there to be read.
        over = ending.is_over()
        latest = job.attempts[-1]
        _write(logs.read(_CHUNKS_A_LOOK))
        if not logs.at_end:
            continue
        if latest != attempt:
            _write(logs.rest())
            if attempt != job.folder:  # else it had not begun
                tell(f"job {job.id} was started again: {latest.name}")
            attempt, logs = latest, LogFiles(latest, wanted)
            continue
        if over:
            _write(logs.rest())
            break
        if (line := _waiting(job, ending)) != told:
            told = line
            if line:
                tell(line)
        if _reader_is_gone():
            return EXIT_READER_GONE
        time.sleep(_LOOK_EVERY_S)
    if ending.status is not None:
        why = f": {ending.status.why}" if ending.status.why else ""
        tell(f"job {job.id} {ending.status.state.value}{why}")
    return EXIT_OK


def _waiting(job: KnownJob, ending: Ending) -> str:
    """A line while nothing will come for a reason."""
    if ending.silence:
        return f"{ending.silence}; the job does not need it, and its logs are still followed"
    if ending.status is not None and ending.status.state.is_waiting:
        return f"job {job.id} is waiting: {ending.status.why}"
    return ""


def _one_task(job: KnownJob) -> KnownJob:
    """The job itself, or of an array the only task that has started.

    Raises:
        UsageError: several have, or none.
    """
    if not job.is_array:
        return job
    tasks = tasks_with_folders(job.folder)
    if len(tasks) == 1:
        return KnownJob(tasks[0], job.folder.with_name(tasks[0]))
    named = ", ".join(tasks[:8]) + (" ..." if len(tasks) > 8 else "")
    started = f"name one of its tasks: {named}" if tasks else "none of its tasks has started yet"
    raise UsageError(f"{job.id} is an array: {started}")


def _attempt(job: KnownJob, number: int | None) -> Path:
    """The folder of an attempt, the last if None. Raises UsageError if there is no such."""
    attempts = job.attempts
    if number is None or (number == 0 and attempts == [job.folder]):
        return attempts[-1]
    chosen = folders.attempt_folder(job.folder, number)
    if chosen not in attempts:
        there = ", ".join(path.name for path in attempts if path != job.folder) or "only one"
        raise UsageError(f"--attempt {number}: job {job.id} has {there}")
    return chosen


def _write(lines: Iterable[bytes]) -> None:
    """Raises OutputError."""
    to_terminal = sys.stdout is not None and sys.stdout.isatty()
    encoding = (sys.stdout.encoding if sys.stdout else None) or "utf-8"
    buffer = bytearray()
    for line in lines:
        buffer += for_terminal(line).encode(encoding, "replace") if to_terminal else line
        buffer += b"\n"
        if len(buffer) >= _WRITE_BYTES:
            write_bytes(bytes(buffer))
            buffer.clear()
    if buffer:
        write_bytes(bytes(buffer))


def _reader_is_gone() -> bool:
    """Whether nobody will read what comes: a pipe says so before it is written to."""
    if sys.stdout is None:
        return False
    poll = select.poll()
    poll.register(sys.stdout, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _selection(asked: argparse.Namespace) -> Selection:
    """Raises UsageError."""
    ranks = frozenset().union(*(parse_ranks(text) for text in asked.rank or ()))
    names = frozenset(name for text in asked.host or () for name in expand(text))
    meshes = frozenset(asked.mesh or ())
    of_hosts = bool(ranks or names or meshes)
    return Selection(
        controller=asked.controller or not of_hosts,
        hosts=of_hosts or not asked.controller,
        ranks=ranks,
        meshes=meshes,
        names=names,
    )


def _parser() -> Parser:
    parser = door.parser_of(
        "logs",
        "What a job has written: its controller, then its hosts by the time of each line.",
    )
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="an id or a job's folder; the newest if none"
    )
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job ends")
    parser.add_argument("--rank", action="append", metavar="RANKS", help="only these: 3,5-7")
    parser.add_argument("--mesh", action="append", metavar="NAME", help="only ranks of this mesh")
    parser.add_argument("--host", action="append", metavar="HOSTS", help="only of these hosts")
    parser.add_argument(
        "--controller", action="store_true", help="the controller's, with the program's output"
    )
    parser.add_argument(
        "-n", "--tail", type=int, metavar="N", help="begin with the last N lines of each file"
    )
    parser.add_argument("--attempt", type=int, metavar="N", help="not the last: 0, 1, ...")
    return parser

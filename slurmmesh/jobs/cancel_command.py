"""``slurmmesh cancel``: ends jobs, in Slurm's queue, on its nodes, or on this machine."""

from __future__ import annotations

import argparse
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmmesh.errors import EXIT_OK, EXIT_SUBMIT_FAILED, SlurmmeshError, SubmitError, UsageError
from slurmmesh.jobs import door, local
from slurmmesh.jobs.known import KnownJob, all_jobs
from slurmmesh.jobs.views import Slurm, View, find_all, view_job
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.ids import JobRef
from slurmmesh.submit.door import Parser, run
from slurmmesh.submit.output import tell

_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
# Slurm's own patience before it kills (KillWait, 30 s on most sites), and the nodes' cleaning up.
_KILL_WAIT_S = 60.0


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    return run(_main, argv)


@dataclass(frozen=True)
class _Target:
    """What is to be ended: a job, or with a filter some tasks of one."""

    job: KnownJob
    ref: JobRef
    views: tuple[View, ...]

    @property
    def is_over(self) -> bool:
        """Whether none of it runs or waits, as far as is known."""
        return all(view.is_over for view in self.views)


def _main(argv: Sequence[str]) -> int:
    asked = _parser().parse_args(list(argv))
    if not asked.jobs and not asked.state and not asked.name:
        raise UsageError("name the jobs to cancel, or which of yours by --state or --name")
    settings, root = door.settings_of(asked)
    client = SlurmClient(settings)
    code = EXIT_OK
    sent = []
    # All are found before the first is ended: a slip of the hand ends none.
    for target in _targets(asked, root, Slurm(client)):
        try:
            if _cancel(target, client):
                sent.append(target)
        except SlurmmeshError as error:
            tell(f"error: {error}")
            code = code or error.exit_code
    if not asked.no_wait:
        begin = time.monotonic()
        for target in sent:
            if not _wait(target, client, begin, settings.stop_grace_s):
                code = code or EXIT_SUBMIT_FAILED
    return code


def _targets(asked: argparse.Namespace, root: Path, slurm: Slurm) -> list[_Target]:
    """What is asked for.

    Raises:
        UsageError: a job is none of slurmmesh's, or a filter is none.
        SubmitError: Slurm does not answer, so that it is not known what its numbers stand for.
    """
    states = door.states_of(asked.state)
    jobs = find_all(asked.jobs, root, slurm) if asked.jobs else all_jobs(root)
    slurm.ask(jobs)
    if asked.jobs and slurm.silent:
        raise SubmitError(next(iter(slurm.silent.values())), advice="Nothing was cancelled.")
    filtered = bool(states or asked.name)
    targets = []
    for job in jobs:
        views = view_job(job, slurm)
        if not filtered:
            targets.append(_Target(job, job.ref, tuple(views)))
            continue
        for view in views:
            in_state = not states or view.status.state in states
            if in_state and (not asked.name or view.job.name in asked.name):
                targets.append(_Target(view.job, JobRef(view.id, job.ref.cluster), (view,)))
    if not filtered:
        return targets
    for reason in slurm.silent.values():
        tell(f"{reason}: jobs there are left alone")
    # What a filter finds has no need to be told that it has ended; tasks are found twice.
    found = {target.ref: target for target in targets if not target.is_over}
    if not found:
        tell("no job of yours is like that")
    return list(found.values())


def _cancel(target: _Target, client: SlurmClient) -> bool:
    """End one; returns whether there was something to end.

    Raises:
        UsageError: a local job that is not ours, or runs elsewhere.
        SubmitError: Slurm refuses.
    """
    job, statuses = target.job, [view.status for view in target.views]
    if job.is_local:
        if local.send(job, signal.SIGTERM):
            tell(f"job {job.id} is being ended: its controller got SIGTERM")
            return True
    elif not target.is_over:
        client.cancel(target.ref)
        waits = all(status.state.is_waiting for status in statuses)
        tell(f"job {target.ref} is being cancelled; it was {'waiting' if waits else 'running'}")
        return True
    why = f": {statuses[0].why}" if statuses[0].why else ""
    tell(f"job {target.ref}: there is nothing to end ({statuses[0].state.value}{why})")
    return False


def _wait(target: _Target, client: SlurmClient, begin: float, grace_s: float) -> bool:
    """Whether it has ended, when that is known or no longer waited for.

    A local job that does not stop within ``grace_s`` from ``begin`` is killed. Ctrl-C ends the
    waiting alone.
    """
    job = target.job
    told = False
    pause = _FIRST_PAUSE_S
    while still := _still(target, client):
        waited_s = time.monotonic() - begin
        if waited_s > grace_s + _KILL_WAIT_S:
            tell(
                f"job {target.ref} was told to end, but has not within {waited_s:.0f} s: {still}; "
                f"`slurmmesh status {target.job.id}` tells how it goes on"
            )
            return False
        if not told and waited_s > grace_s:
            told = True
            if job.is_local:
                tell(f"job {job.id} does not stop by itself: killing it")
                local.send(job, signal.SIGKILL)
            else:
                tell(f"job {target.ref} is still ending; Slurm kills what does not stop by itself")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    tell(f"job {target.ref} has ended")
    return True


def _still(target: _Target, client: SlurmClient) -> str:
    """Why a job cannot be said to have ended; empty if it can."""
    if target.job.is_local:
        return "" if local.has_ended(target.job) else "its controller is still there"
    try:
        info = client.job(target.ref)
    except SubmitError as error:
        return error.message
    if info is None or info.state.is_over:
        return ""
    return f"Slurm says {info.state.value}" + (f" on {info.nodes}" if info.nodes else "")


def _parser() -> Parser:
    parser = door.parser_of(
        "cancel",
        "Ends jobs that wait or run. A program that runs gets SIGTERM, and can stop in order.",
    )
    parser.add_argument(
        "jobs",
        metavar="JOB",
        nargs="*",
        help="an id (123 with all tasks of an array, 123_4, local-...) or a job's folder",
    )
    parser.add_argument("-t", "--state", action="append", metavar="STATES", help="only these")
    parser.add_argument("-n", "--name", action="append", metavar="NAME", help="only of this name")
    parser.add_argument("--no-wait", action="store_true", help="do not wait for the end")
    return parser

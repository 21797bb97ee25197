"""What ``python -m slurmmesh.submit`` does, from the command line to the exit code."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path

from slurmmesh.errors import EXIT_INTERRUPTED, EXIT_OK, SlurmmeshError, UsageError
from slurmmesh.slurm import submission
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.environment import ignored_sbatch_options
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.program import check_program
from slurmmesh.slurm.root import prepare_root
from slurmmesh.submit import plan as planning
from slurmmesh.submit.arguments import Request, parse
from slurmmesh.submit.folders import make_local_folder, why_incomplete
from slurmmesh.submit.gpus import has_gpus
from slurmmesh.submit.interrupts import Interrupts
from slurmmesh.submit.output import EXIT_READER_GONE, OutputError, follower, tell, write
from slurmmesh.submit.plan import Plan
from slurmmesh.submit.stuck import leaves_if_stuck, tell_if_read

# Hosts of a job on this machine are processes.
_MOST_HOSTS = 512


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code (``docs/exit-codes.md``)."""
    interrupts = Interrupts()
    try:
        with interrupts:
            return _run(parse(argv), interrupts)
    except SlurmmeshError as error:
        tell(f"error: {error}")
        return interrupts.exit_code if interrupts else error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _run(request: Request, interrupts: Interrupts) -> int:
    plan = planning.make(request, _working_folder())
    if plan.dry_run:
        return _print_script(plan)
    check_program(plan.job)
    if plan.cluster == "local":
        _check_hosts(plan.job)
    on_slurm = _use_slurm(plan)
    if interrupts:
        tell("interrupted; nothing was started")
        return interrupts.exit_code
    if on_slurm:
        return _run_on_slurm(plan, interrupts)
    return _run_here(plan, interrupts)


def _print_script(plan: Plan) -> int:
    if plan.cluster == "local":
        raise UsageError("--dry-run shows the batch script for Slurm; --cluster local has none")
    script = plan.job.script()
    try:
        check_program(plan.job)
    except UsageError as error:
        tell(f"warning: {error}")
    try:
        write(script)
    except OutputError as error:
        if error.exit_code == EXIT_READER_GONE:
            return error.exit_code
        raise
    return EXIT_OK


def _use_slurm(plan: Plan) -> bool:
    if plan.cluster != "auto":
        return plan.cluster == "slurm"
    reason = SlurmClient(plan.settings).why_not()
    if reason:
        tell(f"running on this machine: {reason}")
    else:
        tell("Slurm answers: submitting to it")
    return not reason


def _run_here(plan: Plan, interrupts: Interrupts) -> int:
    from slurmmesh.submit import foreground  # brings the hosts' room, which Slurm's way spares

    job = plan.job
    _check_hosts(job)
    if plan.test_only:
        raise UsageError("--test-only asks Slurm; this machine has no queue")
    if job.container:
        raise UsageError("--container needs Slurm: on this machine programs run without an image")
    if unused := plan.only_for_slurm:
        tell(f"not used on this machine: {', '.join(unused)}")
    if job.gpu_count and not has_gpus():
        tell(
            "no GPU was found on this machine: --gpus-per-node only tells the program how many "
            "processes a host takes"
        )
    prepare_root(plan.settings.job_root)
    job_id, folder = make_local_folder(plan.settings.job_root)
    try:
        write(_announcement(plan, dataclasses.replace(job, id=job_id), folder, "running"))
    except OutputError as error:
        folder.rmdir()
        tell(f"error: {error}; nothing was started")
        return error.exit_code
    show = follower(plan.parsable or plan.json)
    try:
        code = foreground.run(job, job_id, folder, plan.settings, interrupts, show, tell)
    except OutputError as error:
        tell(f"job {job_id} was stopped: {error}; what there was: {folder}/controller.log")
        return error.exit_code
    if interrupts:
        tell(f"job {job_id} was stopped; its output: {folder}/controller.log")
    elif code != EXIT_OK:
        tell(f"job {job_id} failed with exit code {code}; its output: {folder}/controller.log")
        _tell_why(folder, folder / "controller.log")
    return code


def _run_on_slurm(plan: Plan, interrupts: Interrupts) -> int:
    settings = plan.settings
    if ignored := ignored_sbatch_options(os.environ):
        tell(
            f"not used: {', '.join(ignored)} of your shell; give the options themselves, others "
            "with --sbatch"
        )
    client = SlurmClient(settings, interrupted=lambda: bool(interrupts))
    if plan.test_only:
        write(submission.test(plan.job, client, tell) + "\n")
        return EXIT_OK
    job = submission.submit(plan.job, client, tell)
    # Now that the job is on its way, there is time to load what is done with it from here on.
    from slurmmesh.slurm.watch import JobWatch
    from slurmmesh.submit import queued

    ref = submission.ref_of(job)
    watch = JobWatch(SlurmClient(settings), job, tell)
    if not interrupts:
        # A job that can never start is refused now, whether it is waited for or not.
        JobWatch(client, job, lambda line: None).look()
    watched = plan.wait or plan.follow
    try:
        write(_announcement(plan, job, job.folder, "submitted"))
    except OutputError as error:
        tell(f"job {ref} was submitted, but {error}; its logs: {job.folder}")
        in_vain = not watched or (not plan.wait and error.exit_code == EXIT_READER_GONE)
        if in_vain and not interrupts:
            return error.exit_code

    def leave() -> int:
        if watch.outcome is not None:
            return watch.outcome.exit_code
        queued.cancel(ref, settings, interrupts, tell_if_read)
        return interrupts.exit_code

    try:
        with leaves_if_stuck(interrupts, lambda: True, leave):
            if plan.follow:
                queued.follow(watch, interrupts, follower(plan.parsable or plan.json))
            elif watched:
                queued.wait(watch, interrupts)
    except OutputError as error:
        tell(f"job {ref} goes on, but {error}; its output: {watch.log}")
        return error.exit_code
    if watch.outcome is not None:
        output = _output_of(watch.log)
        tell(f"{watch.outcome.message}; its output: {output}")
        if watch.outcome.exit_code != EXIT_OK:
            _tell_why(watch.log.parent, output)
        return watch.outcome.exit_code
    if interrupts:
        queued.cancel(ref, settings, interrupts, tell)
        return interrupts.exit_code
    return EXIT_OK


def _announcement(plan: Plan, job: SlurmJob, folder: Path, verb: str) -> str:
    """What stdout gets when a job is under way."""
    ref = submission.ref_of(job)
    if plan.parsable:
        return f"{ref}\n"
    if plan.json:
        return json.dumps({**submission.record_of(job), "folder": str(folder)}) + "\n"
    return f"{verb} job {ref}\nlogs: {folder}\n"


def _output_of(log: Path) -> Path:
    """Where to read how a job went: until its script is at its log, in what Slurm writes."""
    before = log.parents[1].with_name(f"{log.parents[1].name}.out")
    return before if not os.path.exists(log) and os.path.exists(before) else log


def _tell_why(folder: Path, output: Path) -> None:
    """What a reader of a failed job would look for first."""
    from slurmmesh.submit.last_words import last_words

    # Where stderr has a file of its own, the reason is in that.
    if words := last_words(folder / "controller.err") or last_words(output):
        tell(words)
    if reason := why_incomplete(folder):
        tell(reason)


def _working_folder() -> Path:
    try:
        return Path(os.getcwd())
    except FileNotFoundError:
        raise UsageError("the current folder no longer exists: change to another") from None


def _check_hosts(job: SlurmJob) -> None:
    """Raise UsageError if this machine is asked for more hosts than one could bear."""
    if job.node_range[1] > _MOST_HOSTS:
        raise UsageError(
            f"--nodes and --spares: {job.node_range[1]} hosts on this machine; "
            f"{_MOST_HOSTS} are the most"
        )

"""What ``python -m slurmmesh.submit`` does, from the command line to the exit code."""

from __future__ import annotations

import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from slurmmesh.config import Settings, load_settings
from slurmmesh.errors import EXIT_INTERRUPTED, EXIT_OK, SlurmmeshError, UsageError
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.environment import ignored_sbatch_options
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.template import render
from slurmmesh.submit import queued
from slurmmesh.submit.arguments import Request, parse
from slurmmesh.submit.folders import make_local_folder, prepare_root, why_incomplete
from slurmmesh.submit.gpus import has_gpus
from slurmmesh.submit.interrupts import Interrupts
from slurmmesh.submit.last_words import last_words
from slurmmesh.submit.output import EXIT_READER_GONE, OutputError, follower, tell, write
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
    settings = load_settings()
    job = request.job(settings.job_root, _working_folder())
    if request.dry_run:
        return _print_script(request, job)
    _check_program(job)
    if request.cluster == "local":
        _check_hosts(job)
    prepare_root(settings.job_root)
    on_slurm = _use_slurm(request, settings)
    if interrupts:
        tell("interrupted; nothing was started")
        return interrupts.exit_code
    if on_slurm:
        return _run_on_slurm(request, job, settings, interrupts)
    return _run_here(request, job, settings, interrupts)


def _print_script(request: Request, job: SlurmJob) -> int:
    if request.cluster == "local":
        raise UsageError("--dry-run shows the batch script for Slurm; --cluster local has none")
    script = render(job)
    try:
        _check_program(job)
    except UsageError as error:
        tell(f"warning: {error}")
    try:
        write(script)
    except OutputError as error:
        if error.exit_code == EXIT_READER_GONE:
            return error.exit_code
        raise
    return EXIT_OK


def _use_slurm(request: Request, settings: Settings) -> bool:
    if request.cluster != "auto":
        return request.cluster == "slurm"
    reason = SlurmClient(settings).why_not()
    if reason:
        tell(f"running on this machine: {reason}")
    else:
        tell("Slurm answers: submitting to it")
    return not reason


def _run_here(request: Request, job: SlurmJob, settings: Settings, interrupts: Interrupts) -> int:
    from slurmmesh.submit import foreground  # brings the hosts' room, which Slurm's way spares

    _check_hosts(job)
    if unused := request.only_for_slurm:
        tell(f"not used on this machine: {', '.join(unused)}")
    if job.gpu_count and not has_gpus():
        tell(
            "no GPU was found on this machine: --gpus-per-node only tells the program how many "
            "processes a host takes"
        )
    job_id, folder = make_local_folder(settings.job_root)
    try:
        write(f"{job_id}\n" if request.parsable else f"running job {job_id}\nlogs: {folder}\n")
    except OutputError as error:
        folder.rmdir()
        tell(f"error: {error}; nothing was started")
        return error.exit_code
    show = follower(request.parsable)
    try:
        code = foreground.run(job, job_id, folder, settings, interrupts, show, tell)
    except OutputError as error:
        tell(f"job {job_id} was stopped: {error}; what there was: {folder}/controller.log")
        return error.exit_code
    if interrupts:
        tell(f"job {job_id} was stopped; its output: {folder}/controller.log")
    elif code != EXIT_OK:
        tell(f"job {job_id} failed with exit code {code}; its output: {folder}/controller.log")
        _tell_why(folder)
    return code


def _run_on_slurm(
    request: Request, job: SlurmJob, settings: Settings, interrupts: Interrupts
) -> int:
    if ignored := ignored_sbatch_options(os.environ):
        tell(
            f"not used: {', '.join(ignored)} of your shell; give the options themselves, others "
            "with --sbatch"
        )
    ref = queued.submit(job, settings, interrupts, tell)
    folder = settings.job_root / ref.id
    watched = request.wait or request.follow
    try:
        write(f"{ref}\n" if request.parsable else f"submitted job {ref}\nlogs: {folder}\n")
    except OutputError as error:
        tell(f"job {ref} was submitted, but {error}; its logs: {folder}")
        in_vain = not watched or (not request.wait and error.exit_code == EXIT_READER_GONE)
        if in_vain and not interrupts:
            return error.exit_code
    watch = queued.watch(ref, folder, settings, tell)

    def leave() -> int:
        if watch.outcome is not None:
            return watch.outcome.exit_code
        queued.cancel(ref, settings, interrupts, tell_if_read)
        return interrupts.exit_code

    try:
        if watched:
            show = follower(request.parsable) if request.follow else None
            with leaves_if_stuck(interrupts, lambda: True, leave):
                queued.wait(watch, folder, interrupts, show)
    except OutputError as error:
        tell(f"job {ref} goes on, but {error}; its output: {folder}/controller.log")
        return error.exit_code
    if watch.outcome is not None:
        tell(f"{watch.outcome.message}; its output: {folder}/controller.log")
        if watch.outcome.exit_code != EXIT_OK:
            _tell_why(folder)
        return watch.outcome.exit_code
    if interrupts:
        queued.cancel(ref, settings, interrupts, tell)
        return interrupts.exit_code
    return EXIT_OK


def _tell_why(folder: Path) -> None:
    """What a reader of a failed job would look for first."""
    if words := last_words(folder / "controller.log"):
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
    if job.nodes_with_spares > _MOST_HOSTS:
        raise UsageError(
            f"--nodes and --spares: {job.nodes_with_spares} hosts on this machine; "
            f"{_MOST_HOSTS} are the most"
        )


def _check_program(job: SlurmJob) -> None:
    """Raise UsageError if the script or module is not there."""
    name = job.program[-1]
    if job.program[0] != "-m":
        if not (job.cwd / name).is_file():
            raise UsageError(f"there is no script {name!r} in {str(job.cwd)!r}")
        if not os.access(job.cwd / name, os.R_OK):
            raise UsageError(f"no permission to read the script {name!r}")
        return
    top = name.partition(".")[0]
    known = top in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(
        top, [str(job.cwd), *sys.path]
    )
    if not known:
        raise UsageError(f"there is no module {top!r} for {job.python}")

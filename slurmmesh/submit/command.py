"""What ``python -m slurmmesh.submit`` does, from the command line to the exit code."""

from __future__ import annotations

import contextlib
import importlib.machinery
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from slurmmesh.config import Settings, load_settings
from slurmmesh.errors import EXIT_INTERRUPTED, EXIT_OK, SlurmmeshError, UsageError
from slurmmesh.slurm.client import JobRef, SlurmClient
from slurmmesh.slurm.environment import ignored_sbatch_options
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.template import render
from slurmmesh.submit import queued
from slurmmesh.submit.arguments import Request, parse
from slurmmesh.submit.folders import make_local_folder, prepare_root, why_incomplete
from slurmmesh.submit.gpus import has_gpus
from slurmmesh.submit.interrupts import Interrupts
from slurmmesh.submit.last_words import last_words


def main(argv: Sequence[str]) -> int:
    """Run the command; returns its exit code (``docs/exit-codes.md``)."""
    interrupts = Interrupts()
    try:
        with interrupts:
            return _run(parse(argv), interrupts)
    except SlurmmeshError as error:
        _tell(f"error: {error}")
        return interrupts.exit_code if interrupts else error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of our output is gone, and with it the reason to write any more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(request: Request, interrupts: Interrupts) -> int:
    settings = load_settings()
    job = request.job(settings.job_root, _working_folder())
    if request.dry_run:
        return _print_script(request, job)
    _check_program(job)
    prepare_root(settings.job_root)
    on_slurm = _use_slurm(request, settings)
    if interrupts:
        _tell("interrupted; nothing was started")
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
        _tell(f"warning: {error}")
    _print(script, end="")
    return EXIT_OK


def _use_slurm(request: Request, settings: Settings) -> bool:
    if request.cluster != "auto":
        return request.cluster == "slurm"
    reason = SlurmClient(settings).why_not()
    if reason:
        _tell(f"running on this machine: {reason}")
    else:
        _tell("Slurm answers: submitting to it")
    return not reason


def _run_here(request: Request, job: SlurmJob, settings: Settings, interrupts: Interrupts) -> int:
    from slurmmesh.submit import foreground  # brings the hosts' room, which Slurm's way spares

    if unused := request.only_for_slurm:
        _tell(f"not used on this machine: {', '.join(unused)}")
    if job.gpu_count and not has_gpus():
        _tell(
            "no GPU was found on this machine: --gpus-per-node only tells the program how many "
            "processes a host takes"
        )
    job_id, folder = make_local_folder(settings.job_root)
    if request.parsable:
        _print(job_id)
    else:
        _print(f"running job {job_id}\nlogs: {folder}")
    code = foreground.run(job, job_id, folder, settings, interrupts, _follower(request), _tell)
    if interrupts:
        _tell(f"job {job_id} was stopped; its output: {folder}/controller.log")
    elif code != EXIT_OK:
        _tell(f"job {job_id} failed with exit code {code}; its output: {folder}/controller.log")
        _tell_why(folder)
    return code


def _run_on_slurm(
    request: Request, job: SlurmJob, settings: Settings, interrupts: Interrupts
) -> int:
    if ignored := ignored_sbatch_options(os.environ):
        _tell(
            f"not used: {', '.join(ignored)} of your shell; give the options themselves, others "
            "with --sbatch"
        )
    ref = queued.submit(job, settings, interrupts, _tell)
    folder = settings.job_root / ref.id
    _announce(request, ref, folder)
    watch = queued.watch(ref, folder, settings, _tell)
    if request.wait or request.follow:
        queued.wait(watch, folder, interrupts, _follower(request) if request.follow else None)
    if watch.outcome is not None:
        _tell(f"{watch.outcome.message}; its output: {folder}/controller.log")
        if watch.outcome.exit_code != EXIT_OK:
            _tell_why(folder)
        return watch.outcome.exit_code
    if interrupts:
        queued.cancel(ref, settings, interrupts, _tell)
        return interrupts.exit_code
    return EXIT_OK


def _tell_why(folder: Path) -> None:
    """What a reader of a failed job would look for first."""
    if words := last_words(folder / "controller.log"):
        _tell(words)
    if reason := why_incomplete(folder):
        _tell(reason)


def _announce(request: Request, ref: JobRef, folder: Path) -> None:
    if request.parsable:
        _print(str(ref))
    else:
        _print(f"submitted job {ref}\nlogs: {folder}")


def _follower(request: Request) -> Callable[[Path, Callable[[], bool]], None]:
    """Shows a job; with --parsable on stderr, so that stdout holds the id alone."""

    def follow(folder: Path, is_done: Callable[[], bool]) -> None:
        from rich.console import Console

        from slurmmesh.telemetry.view import follow as show

        show(folder, is_done, Console(stderr=request.parsable))

    return follow


def _working_folder() -> Path:
    try:
        return Path(os.getcwd())
    except FileNotFoundError:
        raise UsageError("the current folder no longer exists: change to another") from None


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


def _print(text: str, end: str = "\n") -> None:
    """To stdout, with the bytes of file names as they are, whatever the locale."""
    sys.stdout.flush()
    sys.stdout.buffer.write(os.fsencode(text + end))
    sys.stdout.buffer.flush()


def _tell(text: str) -> None:
    with contextlib.suppress(OSError):
        print(f"slurmmesh: {text}", file=sys.stderr, flush=True)

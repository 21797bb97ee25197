"""Whether the program of a job is there."""

from __future__ import annotations

import importlib.machinery
import os
import sys

from slurmmesh.errors import UsageError
from slurmmesh.slurm.job import SlurmJob


def check_program(job: SlurmJob) -> None:
    """Look for the script or module here; what runs in a container may be there alone.

    Raises:
        UsageError: it is not there, or cannot be read; nor is the working folder.
    """
    name = job.program[-1]
    folder = str(job.chdir)
    if not os.path.isdir(folder):
        raise UsageError(f"--chdir {folder!r}: there is no such folder")
    if job.container:
        return
    if job.program[0] == "-m":
        _check_module(name, folder, job.python)
        return
    script = os.path.join(folder, name)
    if not os.path.isfile(script):
        raise UsageError(f"there is no script {name!r} in {folder!r}")
    if not os.access(script, os.R_OK):
        raise UsageError(f"no permission to read the script {name!r}")


def _check_module(name: str, folder: str, python: str) -> None:
    top = name.partition(".")[0]
    known = top in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(
        top, [folder, *sys.path]
    )
    if not known:
        raise UsageError(f"there is no module {top!r} for {python}")

"""The ``#SBATCH`` lines of a job: plain text, one list for each of its components."""

from __future__ import annotations

import os

from slurmmesh.errors import UsageError
from slurmmesh.slurm.job import Resources, SlurmJob
from slurmmesh.slurm.options import OPTIONS
from slurmmesh.slurm.passthrough import directive_of
from slurmmesh.slurm.quoting import (
    directive_value,
    has_control_characters,
    literal_pattern,
    output_pattern,
)

# Written by a rule of their own, or (chdir) by the script.
_SPECIAL = frozenset(
    {"nodes", "ntasks", "job_name", "output", "error", "signal", "requeue", "chdir"}
)


def components(job: SlurmJob) -> list[list[str]]:
    """The options of each component: one for an ordinary job, else first the controller's.

    Raises:
        UsageError: a folder's name that Slurm cannot write to.
    """
    nodes = _range(*job.node_range) if job.nodes or job.node_count else None
    hosts = _resources(job, nodes)
    if job.controller is None:
        return [[*_of_job(job), *hosts]]
    return [[*_of_job(job), *_resources(job.controller, "1")], hosts]


def files_of(job: SlurmJob) -> dict[str, str]:
    """Where Slurm writes a job's output, by the options ``--output`` and ``--error``, absolute.

    Without a wish of the job it is a file in its root, for what comes before the controller. A
    relative wish is meant from the working folder, as with sbatch.

    Raises:
        UsageError: a folder's name that Slurm cannot write to.
    """
    files = {"--output": output_pattern(job.job_root, of_array=job.array is not None)}
    for name, wish in (("--output", job.output), ("--error", job.error)):
        if wish is not None:
            files[name] = _absolute(name, str(wish), str(job.chdir))
    return files


def _absolute(name: str, file: str, folder: str) -> str:
    if os.path.isabs(file):
        return file
    if "\\" in folder:
        raise UsageError(
            f"{name} {file!r}: Slurm cannot write into {folder!r}, because of the backslash: give "
            "an absolute path"
        )
    # A backslash turns Slurm's patterns off.
    return os.path.join(folder if "\\" in file else literal_pattern(folder), file)


def _of_job(job: SlurmJob) -> list[str]:
    lines = [f"--job-name={directive_value(job.job_name, '--job-name')}"]
    for name, file in files_of(job).items():
        if not has_control_characters(file):
            lines.append(f"{name}={directive_value(file, name)}")
    if job.signal is not None:
        # Without B it would go to the hosts; the controller runs the user's program.
        flags, _, signal = str(job.signal).rpartition(":")
        flags = flags if "B" in flags else f"B{flags}"
        lines.append(f"--signal={flags}:{signal}")
    lines.append("--requeue" if job.requeue else "--no-requeue")
    return lines


def _resources(resources: Resources, nodes: str | None) -> list[str]:
    lines = [f"--nodes={nodes}"] if nodes else []
    lines.append(f"--ntasks={resources.ntasks}" if resources.ntasks else "--ntasks-per-node=1")
    for option in OPTIONS.values():
        value = getattr(resources, option.field, None)
        if option.field in _SPECIAL or value is None:
            continue
        text = "" if value is True else f"={directive_value(value, f'--{option.name}')}"
        lines.append(f"--{option.name}{text}")
    return lines + [directive_of(text) for text in resources.sbatch]


def _range(least: int, most: int) -> str:
    return str(least) if least == most else f"{least}-{most}"

"""The ``#SBATCH`` lines of a job: plain text, one list for each of its components."""

from __future__ import annotations

import os

from slurmmesh.slurm.job import Resources, SlurmJob
from slurmmesh.slurm.options import OPTIONS
from slurmmesh.slurm.passthrough import directive_of
from slurmmesh.slurm.quoting import directive_value, has_control_characters, output_pattern

# Written by a rule of their own.
_SPECIAL = frozenset({"nodes", "ntasks", "job_name", "output", "signal", "requeue", "chdir"})


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


def output_pattern_of(job: SlurmJob) -> str:
    """Where Slurm writes what comes before the controller: the job's own wish, or its root."""
    if job.output is not None:
        return str(job.output)
    return output_pattern(job.job_root, of_array=job.array is not None)


def chdir_for_slurm(job: SlurmJob) -> str:
    """The working folder, where Slurm must know it for a relative ``-o`` or ``-e``; else empty.

    The script itself goes there in any case.
    """
    relative = not all(os.path.isabs(str(path or "/")) for path in (job.output, job.error))
    return str(job.chdir) if relative else ""


def _of_job(job: SlurmJob) -> list[str]:
    output = output_pattern_of(job)
    lines = [f"--job-name={directive_value(job.job_name, '--job-name')}"]
    if not has_control_characters(output):
        lines.append(f"--output={directive_value(output, '--output')}")
    chdir = chdir_for_slurm(job)
    if chdir and not has_control_characters(chdir):
        lines.append(f"--chdir={directive_value(chdir, '--chdir')}")
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

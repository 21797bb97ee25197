"""Handing a job to Slurm, and keeping what was handed over."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurmmesh import folders
from slurmmesh._version import __version__
from slurmmesh.errors import SubmitError, UsageError
from slurmmesh.slurm.client import JobRef, SlurmClient
from slurmmesh.slurm.container.image import missing_here
from slurmmesh.slurm.hostlists import compress, expand
from slurmmesh.slurm.job import Resources, SlurmJob
from slurmmesh.slurm.meanwhile import meanwhile
from slurmmesh.slurm.root import EarlierJobs, prepare_root


def submit(job: SlurmJob, client: SlurmClient, tell: Callable[[str], None]) -> SlurmJob:
    """Put a job in the queue; returns it with its ``id``.

    What was submitted is kept in the job's folder. ``tell`` gets what sbatch warned of, and what
    was left out of the job.

    Raises:
        SubmitError: Slurm is down, refused it, or could never start it.
        MissingDependencyError: Slurm is not installed.
        UsageError: a template or folder that cannot be.
        SetupError: the disk of the job root is full.
    """
    root = Path(job.job_root)
    job, script, options = _ready(job, client, tell, lambda: prepare_root(root))
    earlier = EarlierJobs(root)
    ref = client.submit(script, options, name=str(job.job_name), warn=tell)
    earlier.set_aside(ref.id)
    submitted = dataclasses.replace(job, id=ref.id, cluster=ref.cluster)
    try:
        folders.keep_submission(folders.job_folder(root, ref.id), record_of(submitted), script)
    except OSError as error:
        tell(f"what was submitted could not be kept in {root}: {error.strerror or error}")
    return submitted


def test(job: SlurmJob, client: SlurmClient, tell: Callable[[str], None]) -> str:
    """What Slurm answers to ``sbatch --test-only``: when and where the job would start.

    Raises as ``submit`` does.
    """
    job, script, options = _ready(job, client, tell)
    return client.test(script, options)


def without_gone_nodes(job: SlurmJob, client: SlurmClient, tell: Callable[[str], None]) -> SlurmJob:
    """The job with those excluded nodes left out that the cluster no longer has.

    sbatch refuses a job that excludes what is not there. Names in a file are left as they are.
    """
    excluded = str(job.exclude or "")
    if not excluded or "/" in excluded or job.clusters:
        return job
    nodes = client.node_names()
    gone = [host for host in expand(excluded) if host not in nodes]
    if not nodes or not gone:
        return job
    tell(f"--exclude: the cluster has no {compress(gone)} any more; left out")
    left = [host for host in expand(excluded) if host in nodes]
    return dataclasses.replace(job, exclude=compress(left) if left else None)


def record_of(job: SlurmJob) -> dict[str, Any]:
    """What ``submit.json`` tells of a submitted job. Values of variables are not among it."""
    options = dataclasses.asdict(job)
    options["env"] = sorted(job.env)
    return {
        "id": job.id,
        "cluster": job.cluster,
        "name": job.job_name,
        "user": _user(),
        "host": os.uname().nodename,
        "submitted": time.time(),
        "version": __version__,
        "argv": list(job.argv),
        "nodes": job.node_count,
        "spares": job.spares,
        "options": {
            name: str(value) if isinstance(value, Path) else value
            for name, value in options.items()
            if value not in (None, (), "", False)
        },
    }


def load(job_id: str, root: Path) -> SlurmJob:
    """A job that was submitted earlier, from its folder in ``root`` or in the user's index.

    ``123_4`` gives one task of an array.

    The values of its ``env`` are not kept, so they are not in it.

    Raises:
        UsageError: no job's id, or no such job is known here.
    """
    ref = JobRef.parse(job_id)
    folder = folders.find(ref.number, root)
    record = folders.submission(folder) if folder else {}
    if not record:
        raise UsageError(
            f"no job {job_id!r} that slurmmesh submitted is in {root} or in your index: "
            "`slurmmesh list` shows those that are"
        )
    try:
        options = {name: value for name, value in record["options"].items() if name != "env"}
        if controller := options.pop("controller", None):
            options["controller"] = Resources(**controller)
        if ref.tasks is not None and len(ref.tasks) == 1:
            options.update(id=ref.id, array=None)
        return SlurmJob(**options)
    except (AttributeError, KeyError, TypeError, UsageError) as error:  # of another version
        raise UsageError(f"{folder}/{folders.SUBMITTED} makes no sense here: {error}") from None


def ref_of(job: SlurmJob) -> JobRef:
    """How Slurm calls a submitted job."""
    return JobRef(job.id, job.cluster)


def _ready(
    job: SlurmJob,
    client: SlurmClient,
    tell: Callable[[str], None],
    prepare: Callable[[], None] = lambda: None,
) -> tuple[SlurmJob, str, list[str]]:
    """The job as sbatch takes it, with its script and what sbatch must be told beside that.

    Refuses what cannot be. ``prepare`` is done once nothing is wrong with the job itself.
    """
    with meanwhile(lambda: _check_slurm(job, client)):
        # What makes scripts takes longer to load than Slurm to answer.
        from slurmmesh.slurm.template import command_line_options, render

        _check_shell(job)
        _check_files(job)
        prepare()
        script = render(job)
    known = without_gone_nodes(job, client, tell)
    if known is not job:
        script = render(known)
    if words := missing_here(job):
        tell(words)
    return known, script, command_line_options(known)


def _check_shell(job: SlurmJob) -> None:
    """Refuse lines of shell that bash cannot read; what slurmmesh has is left unchecked."""
    from slurmmesh.slurm.template import render, template_names

    if not job.setup and job.template in template_names():
        return
    from slurmmesh.slurm.template_check import mistakes_in_shell

    if mistakes := list(mistakes_in_shell(render(job))):
        raise UsageError(f"--setup or --template: {mistakes[0]}; --dry-run shows the whole script")


def _check_files(job: SlurmJob) -> None:
    """Refuse files for the output where Slurm could make none: it makes no folders."""
    for name, value in (("--output", job.output), ("--error", job.error)):
        folder = os.path.dirname(str(value or ""))
        if "%" in folder or "\\" in folder:  # not a name yet
            continue
        if not os.path.isdir(place := os.path.join(job.chdir, folder)):
            raise UsageError(
                f"{name} {value!r}: there is no folder {place!r}, and Slurm makes none"
            )


def _check_slurm(job: SlurmJob, client: SlurmClient) -> None:
    """Refuse a job that is larger than its partition: many sites let it wait for ever."""
    client.wait_until_up()
    sizes = client.partition_sizes(str(job.clusters or ""))
    least = job.node_range[0]
    names = str(job.partition or "").split(",")
    known = [sizes[name] for name in names if name in sizes]
    if len(known) == len(names) and least > max(known):
        where = f"partition {job.partition}" if job.partition else "the default partition"
        raise SubmitError(
            f"{where} has {max(known)} nodes, but {least} are asked for "
            "(--nodes and --spares together)",
            advice="`sinfo -o '%P %D'` lists the partitions; give one with --partition.",
        )


def _user() -> str:
    import getpass  # brings the terminal's modules, and the job is submitted by now

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a uid without a name
        return ""

"""A ``SlurmJob`` to the script that sbatch gets."""

from __future__ import annotations

import importlib.resources
import os
from pathlib import Path
from typing import Any

import jinja2

from slurmmesh._version import __version__
from slurmmesh.errors import EXIT_SETUP_FAILED
from slurmmesh.slurm.bootstrap import python_code
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.passthrough import directive_of
from slurmmesh.slurm.quoting import directive_value, has_control_characters, output_pattern, sh

_PACKAGE = "slurmmesh.sbatch_templates"


def render(job: SlurmJob, template: str = "default") -> str:
    """The batch script of a job.

    It makes the job folder (0700), sends its output to ``controller.log`` there, sets the
    ``SLURMMESH_*`` variables and becomes the controller. Bytes of names that are no UTF-8 are
    kept as surrogate escapes: write it with ``os.fsencode``.

    Raises:
        UsageError: a folder's name that Slurm cannot write to.
    """
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template_text),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    environment.filters.update(sh=sh, directive_value=directive_value, directive_of=directive_of)
    return environment.get_template(f"{template}.sh.j2").render(_values(job))


def command_line_options(job: SlurmJob) -> list[str]:
    """What sbatch must be told beside the script, because no ``#SBATCH`` line can carry it."""
    output = output_pattern(job.job_root)
    return [f"--output={output}"] if has_control_characters(output) else []


def _values(job: SlurmJob) -> dict[str, Any]:
    output = output_pattern(job.job_root)
    return {
        "version": __version__,
        "job": job,
        "output": None if has_control_characters(output) else output,
        "setup_failed": EXIT_SETUP_FAILED,
        "controller": python_code("slurmmesh.hosts.program"),
    }


def _template_text(name: str) -> str:
    try:
        folder = importlib.resources.files(_PACKAGE)
    except ModuleNotFoundError:
        # A checkout that is used without being installed has the folder beside the package.
        folder = Path(os.path.dirname(__file__)).parents[1] / _PACKAGE.rpartition(".")[2]
    return (folder / name).read_text(encoding="utf-8")

"""A ``SlurmJob`` to the script that sbatch gets."""

from __future__ import annotations

import functools
import importlib.resources
import os
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from slurmmesh._version import __version__
from slurmmesh.errors import EXIT_SETUP_FAILED, UsageError
from slurmmesh.slurm.bootstrap import python_code
from slurmmesh.slurm.container.image import Container
from slurmmesh.slurm.directives import components, files_of
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.quoting import (
    directive_value,
    has_control_characters,
    sh,
    without_control_characters,
)

_PACKAGE = "slurmmesh.sbatch_templates"
_SUFFIX = ".sh.j2"


def render(job: SlurmJob) -> str:
    """The batch script of a job, from its template.

    It makes the folder of the attempt (0700), sends its output to ``controller.log`` there, sets
    the ``SLURMMESH_*`` variables and becomes the controller. Bytes of names that are no UTF-8 are
    kept as surrogate escapes: write it with ``os.fsencode``.

    Raises:
        UsageError: there is no such template, it has a mistake, or a folder's name is one that
            Slurm cannot write to.
    """
    values = _values(job)
    try:
        script = _environment().get_template(job.template).render(values)
    except Exception as error:  # a template can do wrong whatever a program can
        where = _place_in_template(error)
        if isinstance(error, UsageError) and not where:
            raise
        raise UsageError(f"template {job.template!r}: {where}{_what_is_wrong(error)}") from None
    try:
        os.fsencode(script)
    except UnicodeEncodeError as error:
        raise UsageError(f"{error.object[error.start]!r} stands for no character") from None
    return script


def template_names() -> list[str]:
    """The templates that come with slurmmesh."""
    return sorted(
        entry.name.removesuffix(_SUFFIX)
        for entry in _folder().iterdir()
        if entry.name.endswith(_SUFFIX)
    )


def template_text(name: str) -> str:
    """The text of a template: one of slurmmesh's by its name, or a file.

    Raises:
        UsageError: there is none, or it cannot be read.
    """
    try:
        if name in template_names():
            return (_folder() / (name + _SUFFIX)).read_text(encoding="utf-8")
        if _is_file(name):
            return Path(os.path.expanduser(name)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise UsageError(f"template {name!r} cannot be read: {reason}") from None
    raise _no_template(name)


def command_line_options(job: SlurmJob) -> list[str]:
    """What sbatch must be told beside the script, because no ``#SBATCH`` line can carry it."""
    files = files_of(job).items()
    return [f"{name}={file}" for name, file in files if has_control_characters(file)]


def _values(job: SlurmJob) -> dict[str, Any]:
    own_output, own_error = job.output is not None, job.error is not None
    streams = [(1, "controller.log", own_output)]
    if own_error:
        streams.append((2, "controller.err", True))
    return {
        "version": __version__,
        "job": job,
        "template": without_control_characters(job.template, "?"),
        "components": components(job),
        "own_output": own_output,
        "streams": streams,
        "nodes": _nodes(job),
        "threads": _threads(job),
        "setup_failed": EXIT_SETUP_FAILED,
        "controller": python_code("slurmmesh.hosts.program"),
        "launcher": python_code("slurmmesh.slurm.container.launcher"),
        "container": Container.of(job).to_json() if job.container else "",
    }


def _nodes(job: SlurmJob) -> str:
    """The number of hosts without spares, as a word of shell."""
    if job.node_count is not None:
        return str(job.node_count)
    allocated = "SLURM_JOB_NUM_NODES_HET_GROUP_1" if job.controller else "SLURM_JOB_NUM_NODES"
    return f"$(({allocated} - {job.spares}))"


def _threads(job: SlurmJob) -> str:
    """A host's CPUs for each of its GPUs, or for it alone without any, as a word of shell."""
    share = max(job.gpu_count, 1)
    if job.cpus_per_task is not None:
        return str(max(int(str(job.cpus_per_task)) // share, 1))
    if job.controller is not None:  # the script runs on a node of another kind
        return "1"
    cpus = "SLURM_CPUS_ON_NODE"
    return f"$(({cpus} > {share} ? {cpus} / {share} : 1))"


class _Environment(ImmutableSandboxedEnvironment):
    """Where a name stands for one of our templates, or for a file.

    A template is code of its author, but of the script's: it can do nothing in this process.
    """

    def __init__(self) -> None:
        super().__init__(
            loader=jinja2.FunctionLoader(_load),
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
            autoescape=False,
        )
        self.filters.update(sh=sh, directive_value=directive_value)

    def join_path(self, template: str, parent: str) -> str:
        """What ``{% extends template %}`` means in ``parent``: ours, or a file beside it."""
        if not _is_file(template) or not _is_file(parent):
            return template
        return os.path.join(os.path.dirname(parent), os.path.expanduser(template))

    def is_safe_callable(self, obj: Any) -> bool:
        if isinstance(getattr(obj, "__self__", None), SlurmJob):
            raise UsageError(f"a template may read the job, not call its {obj.__name__}()")
        return bool(super().is_safe_callable(obj))


@functools.cache
def _environment() -> _Environment:
    """One for all jobs, which keeps what it has compiled."""
    return _Environment()


def _load(name: str) -> tuple[str, str, Callable[[], bool]]:
    """Text, file and whether that is still the text. The name goes for the file's, for errors."""
    text = template_text(name)
    return text, name, lambda: template_text(name) == text


def _is_file(name: str) -> bool:
    """Whether this is how a file is called, and not one of our templates."""
    return os.sep in name or name.endswith((".j2", ".sh"))


def _place_in_template(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return ""
    if isinstance(error, jinja2.TemplateSyntaxError):
        return f"line {error.lineno} of {error.name}: "
    frames = traceback.extract_tb(error.__traceback__)
    ours = [frame for frame in frames if not frame.filename.endswith(".py")]
    return "".join(f"line {frame.lineno} of {frame.filename}: " for frame in ours[-1:])


def _what_is_wrong(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it comes back to itself by extends, include or import, without an end"
    if isinstance(error, jinja2.UndefinedError):
        return f"{error.message}; docs/templates.md lists the names that there are"
    return str(error) or type(error).__name__


def _no_template(name: str) -> UsageError:
    return UsageError(
        f"there is no template {name!r}: give one of {', '.join(template_names())}, or a file "
        "(with a / in its name, or ending in .j2)"
    )


def _folder() -> Any:
    try:
        return importlib.resources.files(_PACKAGE)
    except ModuleNotFoundError:
        # A checkout that is used without being installed has the folder beside the package.
        return Path(os.path.dirname(__file__)).parents[1] / _PACKAGE.rpartition(".")[2]

"""Into an image: the command lines and environments for apptainer and for pyxis. Pure.

Facts behind it: srun looks for the command on the host (pyxis issue 104), so it is given
``/bin/sh``, which every system has at that path. pyxis lets a variable of the image win over the
job's unless it is named (issue 124), and cannot mount a path with a blank (issue 133). apptainer
has its own PATH and LD_LIBRARY_PATH in the image, and evaluates ``APPTAINERENV_*`` as a shell
would unless told not to.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from slurmmesh.config import is_variable
from slurmmesh.errors import EXIT_SETUP_FAILED, UsageError
from slurmmesh.slurm.quoting import has_control_characters

if TYPE_CHECKING:
    from slurmmesh.slurm.job import SlurmJob

Runtime: TypeAlias = Literal["apptainer", "pyxis"]
RUNTIMES: tuple[str, ...] = get_args(Runtime)

# On the node: apptainer, or its relative, with the GPUs that are there.
_RUN = f"""\
runtime=$(command -v apptainer || command -v singularity) || {{
    echo "slurmmesh: neither apptainer nor singularity is installed on $(uname -n)" >&2
    exit {EXIT_SETUP_FAILED}
}}
[ -e /dev/nvidiactl ] && set -- --nv "$@"
[ -e /dev/kfd ] && set -- --rocm "$@"
exec "$runtime" exec "$@"
"""
# In the image, whose name is $0: the working folder, then the command.
_ENTER = f"""\
fail() {{
    echo "slurmmesh: the image $0 $1" >&2
    exit {EXIT_SETUP_FAILED}
}}
cd -- "$1" || fail "does not have the working folder $1"
shift
command -v -- "$1" >/dev/null || fail "has no $1"
[ -d "${{TMPDIR:-/}}" ] || unset TMPDIR
exec "$@"
"""
# Of the Python and the libraries outside; in the image they would lead astray.
_LEFT_OUTSIDE = frozenset(
    {
        "LD_PRELOAD",
        "PYTHONEXECUTABLE",
        "PYTHONHOME",
        "PYTHONPATH",
        "PYTHONSTARTUP",
        "PYTHONUSERBASE",
        "VIRTUAL_ENV",
        # The job is found by its environment, whatever the user likes otherwise.
        "APPTAINER_CLEANENV",
        "SINGULARITY_CLEANENV",
    }
)
# These are for the image alone: apptainer itself would be harmed.
_ONLY_INSIDE = re.compile(r"PATH|LD_\w+|PYTHON\w+", re.ASCII)
_NOT_FOR_PYXIS = re.compile(r"""[\s,:"'\\#$]""")


@dataclass(frozen=True)
class Container:
    """An image, and what of the job is to be seen in it.

    Attributes:
        runtime: ``apptainer`` or ``pyxis``.
        image: as the runtime takes it.
        mounts: folders that are at the same path inside and outside.
        env: the job's own variables, which win over the image's.
    """

    runtime: str
    image: str
    mounts: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, job: SlurmJob) -> Container:
        """The container of a job that has one."""
        image = job.container
        if is_file(image, job.container_runtime):
            # pyxis takes a bare name for one in a registry.
            image = os.path.join(job.chdir, image)
        env = {name: value or "" for name, value in job.env.items()}
        return cls(job.container_runtime, image, _folders(job), env)

    @classmethod
    def from_json(cls, text: str) -> Container:
        """The inverse of ``to_json``."""
        fields = json.loads(text)
        return cls(**{**fields, "mounts": tuple(fields["mounts"])})

    def to_json(self) -> str:
        """All of it, on one line."""
        return json.dumps(asdict(self))

    def here(self, folder: str, command: Sequence[str]) -> list[str]:
        """The command line that runs a command in the image on this node, by apptainer."""
        mounts = [word for path in self.mounts for word in ("--mount", _mount(path))]
        inside = self._inside(folder, command)
        return ["/bin/sh", "-c", _RUN, "slurmmesh", *mounts, self.image, *inside]

    def of_step(
        self,
        folder: str,
        command: Sequence[str],
        own: Mapping[str, str],
        environ: Mapping[str, str],
    ) -> list[str]:
        """What follows srun's own options, so that each task runs a command in the image.

        Args:
            folder: where it runs.
            own: variables of the step that win over the image's, see ``environ``.
            environ: for pyxis's variables, whose mounts are added to ours.
        """
        if self.runtime == "apptainer":
            return self.here(folder, command)
        mounts = [f"{path}:{path}" for path in self.mounts]
        mounts += filter(None, [environ.get("PYXIS_CONTAINER_MOUNTS")])
        names = [*self._explicit(own), *filter(None, [environ.get("PYXIS_CONTAINER_ENV")])]
        return [
            f"--container-image={self.image}",
            f"--container-mounts={','.join(mounts)}",
            f"--container-env={','.join(names)}",
            *self._inside(folder, command),
        ]

    def environ(self, outside: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
        """For the process that starts the image, and so for the image.

        Args:
            outside: the environment of the batch script, or what of it a step is to have.
            own: further variables that win over the image's.
        """
        found = {
            name: value
            for name, value in outside.items()
            if name not in _LEFT_OUTSIDE and not name.startswith("CONDA_")
        }
        explicit = self._explicit(own)
        if self.runtime == "pyxis":
            return {**found, **explicit}
        for name, value in explicit.items():
            if not _ONLY_INSIDE.fullmatch(name):
                found[name] = value
            found[f"APPTAINERENV_{name}"] = found[f"SINGULARITYENV_{name}"] = value
        # A value is what it is, also with a $ in it.
        return {**found, "APPTAINER_NO_EVAL": "1", "SINGULARITY_NO_EVAL": "1"}

    def _explicit(self, own: Mapping[str, str]) -> dict[str, str]:
        # What pip has put into the home outside of the image is for another Python.
        given = {"PYTHONNOUSERSITE": "1", **self.env, **own}
        return {name: value for name, value in given.items() if is_variable(name)}

    def _inside(self, folder: str, command: Sequence[str]) -> list[str]:
        return ["/bin/sh", "-c", _ENTER, self.image, folder, *command]


def check(job: SlurmJob) -> None:
    """Raise UsageError for an image, or folders, that the runtime cannot take."""
    image = job.container
    if image.startswith("-") or has_control_characters(image):
        raise UsageError(f"--container {image!r} is no image")
    folders = _folders(job)
    if "/" in folders:
        raise UsageError(
            "in an image the job root and the working folder are mounted, and / cannot be: give "
            "another --chdir, or SLURMMESH_JOB_ROOT"
        )
    odd = [folder for folder in folders if _NOT_FOR_PYXIS.search(folder)]
    if job.container_runtime == "pyxis" and odd:
        raise UsageError(
            f"pyxis cannot mount {odd[0]!r}: its name may have no blank and none of , : \" ' \\ # $"
        )


def is_file(image: str, runtime: str) -> bool:
    """Whether an image is named by a path, as far as the name tells."""
    if runtime == "pyxis":
        return image.startswith((".", "/")) or image.endswith(".sqsh")
    return "://" not in image


def missing_here(job: SlurmJob) -> str:
    """What to tell a user whose image is not on this machine; empty where there is nothing."""
    if not job.container or not is_file(job.container, job.container_runtime):
        return ""
    path = os.path.join(job.chdir, job.container)
    if os.path.exists(path):
        return ""
    return f"--container: {path} is not on this machine; it must be on the nodes"


def _folders(job: SlurmJob) -> tuple[str, ...]:
    """What is mounted: the job root, the working folder and the script's; none within another."""
    wanted = [os.path.normpath(job.job_root), os.path.normpath(job.chdir)]
    if len(job.program) == 1:
        script = os.path.normpath(os.path.join(job.chdir, job.program[0]))
        wanted.append(os.path.dirname(script))
    found: list[str] = []
    for path in sorted(set(wanted)):
        if not any(path.startswith(f"{each.rstrip('/')}/") for each in found):
            found.append(path)
    return tuple(found)


def _mount(path: str) -> str:
    """A value of apptainer's ``--mount``: fields as in a CSV file, so any path can be said."""

    def quoted(text: str) -> str:
        return '"' + text.replace('"', '""') + '"'

    return ",".join(["type=bind", quoted(f"source={path}"), quoted(f"destination={path}")])

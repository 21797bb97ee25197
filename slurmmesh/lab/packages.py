"""Which programs a lab needs, where they are, and what to install where they are not."""

from __future__ import annotations

import os
import re
import shutil
import subprocess

from slurmmesh.errors import LabError, MissingDependencyError
from slurmmesh.lab.spec import LabSpec

# Daemons live in sbin folders, which are not on a plain user's PATH on Debian.
_SBIN = ("/usr/local/sbin", "/usr/sbin", "/sbin")

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sinfo", "scontrol", "srun", "sbatch")
_PACKAGES = (
    "slurm-wlm",
    "slurmctld",
    "slurmd",
    "slurm-client",
    "munge",
    "slurm-wlm-basic-plugins",
)


def search_path(environ: dict[str, str] | None = None) -> str:
    """The caller's PATH with the sbin folders behind it."""
    path = (os.environ if environ is None else environ).get("PATH", os.defpath)
    return os.pathsep.join([path, *(s for s in _SBIN if s not in path.split(os.pathsep))])


def needed_programs(spec: LabSpec) -> tuple[str, ...]:
    programs = list(_PROGRAMS)
    if spec.accounting:
        programs += ["slurmdbd", "mariadbd", "mariadb-install-db"]
    if spec.netns:
        programs.append("ip")
    return tuple(programs)


def install_line(spec: LabSpec) -> str:
    """The command that installs, on Debian and Ubuntu, all that a lab like this needs."""
    packages = list(_PACKAGES)
    if spec.accounting:
        packages += ["slurmdbd", "mariadb-server"]
    if spec.netns:
        packages.append("iproute2")
    return "apt-get install -y --no-install-recommends " + " ".join(packages)


def find_programs(spec: LabSpec, path: str | None = None) -> dict[str, str]:
    """Program names to absolute paths.

    Raises:
        MissingDependencyError: with the names that are missing and the line that installs them.
    """
    path = search_path() if path is None else path
    found = {name: shutil.which(name, path=path) for name in needed_programs(spec)}
    missing = [name for name, where in found.items() if where is None]
    if missing:
        raise MissingDependencyError(
            f"a lab needs {', '.join(missing)}, not found on PATH. On Debian or Ubuntu, as root:\n"
            f"  {install_line(spec)}"
        )
    return {name: os.path.abspath(where) for name, where in found.items() if where is not None}


def slurm_version(slurmctld: str) -> tuple[int, int]:
    """Slurm's release, as (22, 5) for 22.05.8.

    Raises:
        LabError: the program did not say.
    """
    try:
        answer = subprocess.run(
            [slurmctld, "-V"], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise LabError(f"{slurmctld} -V did not run: {error}") from error
    return parse_version(answer.stdout + answer.stderr)


def parse_version(text: str) -> tuple[int, int]:
    """The first ``major.minor`` of a version line such as ``slurm-wlm 22.05.8``.

    Raises:
        LabError: there is none.
    """
    match = re.search(r"\b(\d{1,4})\.(\d{1,4})\b", text)
    if match is None:
        raise LabError(f"cannot tell the version of Slurm from {text.strip()!r}")
    return int(match[1]), int(match[2])

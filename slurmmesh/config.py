"""Settings: defaults, and ``SLURMMESH_*`` of the environment over them; the root they name."""

from __future__ import annotations

import ipaddress
import math
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from slurmmesh.errors import ConfigError


@dataclass(frozen=True)
class Settings:
    """What a site or a user may set once for all jobs.

    Attributes:
        job_root: the folder of the job folders, absolute; all nodes must see it.
        slurm_timeout_s: the longest any one command of Slurm may take.
        slurm_patience_s: how long to go on asking while slurmctld refuses connections, as it
            does while it restarts.
        stop_grace_s: how long a stopped local job may take to end in order before it is killed.
        interface: the network by which the nodes of a job reach each other: the name of an
            interface, or a network such as ``10.8.0.0/16``; empty for the one that Slurm uses.
    """

    job_root: Path
    slurm_timeout_s: float = 30.0
    slurm_patience_s: float = 5.0
    stop_grace_s: float = 15.0
    interface: str = ""


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process.

    Raises:
        ConfigError: a value that cannot be one, with the name of its variable.
    """
    environ = os.environ if environ is None else environ
    defaults = Settings(job_root=_job_root(environ))
    return Settings(
        job_root=defaults.job_root,
        slurm_timeout_s=_seconds(environ, "SLURM_TIMEOUT_S", defaults.slurm_timeout_s),
        slurm_patience_s=_seconds(environ, "SLURM_PATIENCE_S", defaults.slurm_patience_s),
        stop_grace_s=_seconds(environ, "STOP_GRACE_S", defaults.stop_grace_s),
        interface=_interface(environ),
    )


def _job_root(environ: Mapping[str, str]) -> Path:
    text = environ.get("SLURMMESH_JOB_ROOT")
    if text == "":
        raise ConfigError("SLURMMESH_JOB_ROOT is empty: give a folder that all nodes see")
    try:
        return Path(os.path.abspath(os.path.expanduser(text or "slurmmesh-jobs")))
    except FileNotFoundError:
        raise ConfigError(
            "the current folder no longer exists: change to another, or set SLURMMESH_JOB_ROOT "
            "to an absolute path"
        ) from None


def _interface(environ: Mapping[str, str]) -> str:
    """An interface's name is looked for on the nodes; a network can be checked here."""
    text = environ.get("SLURMMESH_INTERFACE", "").strip()
    if "/" in text:
        try:
            ipaddress.ip_network(text, strict=False)
        except ValueError as error:
            raise ConfigError(
                f"SLURMMESH_INTERFACE={text!r} is no network: {error}; give one such as "
                "10.8.0.0/16, or the name of an interface"
            ) from None
    return text


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    variable = f"SLURMMESH_{name}"
    text = environ.get(variable)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise ConfigError(f"{variable}={text!r} is no number of seconds over 0")
    return value


def make_local_folder(root: Path) -> tuple[str, Path]:
    """Make the folder (0700) of a new local job, and the root of job folders if need be.

    Returns the job's id and the folder. Raises OSError.
    """
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    job_id = f"local-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    folder = root / job_id
    folder.mkdir(mode=0o700)
    return job_id, folder

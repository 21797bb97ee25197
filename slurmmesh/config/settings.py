"""The settings themselves: their types, what may stand in each, and how a job is told of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from slurmmesh.config.networks import network_items

PREFIX = "SLURMMESH_"


@dataclass(frozen=True)
class Settings:
    """What a site or a user may set once for all jobs.

    Attributes:
        job_root: the folder of the job folders, absolute; all nodes must see it.
        slurm_timeout_s: the longest any one command of Slurm may take.
        slurm_patience_s: how long to go on asking while slurmctld refuses connections, as it
            does while it restarts.
        stop_grace_s: how long a stopped local job may take to end in order before it is killed.
        interface: by what the nodes of a job reach each other: interfaces and networks such as
            ``ib0,10.8.0.0/16``, see ``networks.py``; empty for the network that Slurm uses.
        log_max_mb: a host's log becomes so large, in MiB, before a new file is begun.
        log_keep: so many files of it that are full are kept.
    """

    job_root: Path
    slurm_timeout_s: float = 30.0
    slurm_patience_s: float = 5.0
    stop_grace_s: float = 15.0
    interface: str = ""
    log_max_mb: float = 100.0
    log_keep: int = 4

    def as_environ(self) -> dict[str, str]:
        """The variables that give these settings to the processes of a job; none for empty ones."""
        values = {variable_of(key): str(getattr(self, key)) for key in SETTINGS}
        return {name: value for name, value in values.items() if value}


def variable_of(key: str) -> str:
    """The environment's name for a setting."""
    return PREFIX + key.upper()


def _folder(value: str | float) -> str:
    if not value:
        raise ValueError("is empty: give a folder that all nodes see")
    return str(value)


def _seconds(value: str | float) -> float:
    try:
        seconds = float(value)
    except (ValueError, OverflowError):
        seconds = math.nan
    if not (math.isfinite(seconds) and seconds > 0):
        raise ValueError("is no number of seconds over 0")
    return seconds


def _megabytes(value: str | float) -> float:
    try:
        return _seconds(value)
    except ValueError:
        raise ValueError("is no number of MiB over 0") from None


def _count(value: str | float) -> int:
    try:
        if (count := int(value)) == float(value) and count >= 0:
            return count
    except (ValueError, OverflowError):
        pass
    raise ValueError("is no whole number of at least 0")


def _network(value: str | float) -> str:
    text = str(value).strip()
    network_items(text)
    return text


@dataclass(frozen=True)
class Setting:
    """What may stand in one field of ``Settings``.

    Attributes:
        check: gives the value of a text or number; raises ValueError with what is wrong.
        default: a relative folder is meant from the working folder.
    """

    check: Callable[[str | float], str | float]
    default: str | float

    @property
    def is_number(self) -> bool:
        """Whether a settings file has a number there, not text."""
        return not isinstance(self.default, str)


SETTINGS: dict[str, Setting] = {
    "job_root": Setting(_folder, "slurmmesh-jobs"),
    "slurm_timeout_s": Setting(_seconds, Settings.slurm_timeout_s),
    "slurm_patience_s": Setting(_seconds, Settings.slurm_patience_s),
    "stop_grace_s": Setting(_seconds, Settings.stop_grace_s),
    "interface": Setting(_network, Settings.interface),
    "log_max_mb": Setting(_megabytes, Settings.log_max_mb),
    "log_keep": Setting(_count, Settings.log_keep),
}

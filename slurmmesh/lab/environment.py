"""The environments of a lab's daemons and of the programs that talk to it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurmmesh.lab.spec import Layout

# What Slurm and the launchers under it leave in the environment of a job. A lab may be started
# inside a job of a real cluster, and nothing of that job may reach what runs in the lab.
OUTER_JOB_PREFIXES = (
    "SLURM_",
    "SLURMD_",
    "SBATCH_",
    "SALLOC_",
    "SRUN_",
    "SQUEUE_",
    "SINFO_",
    "SACCT_",
    "SCANCEL_",
    "SCONTROL_",
    "PMI_",
    "PMIX_",
)

# Daemons and the command of `exec` carry this, so that the keeper finds what got away from it.
MARK = "_SLURMMESH_LAB"

_KEPT_FOR_DAEMONS = ("HOME", "USER", "LOGNAME", "TZ", "LD_LIBRARY_PATH")


def client_environment(environ: Mapping[str, str], layout: Layout) -> dict[str, str]:
    """``environ`` without traces of an outer job, pointing to the lab. PATH is left alone."""
    kept = {
        name: value for name, value in environ.items() if not name.startswith(OUTER_JOB_PREFIXES)
    }
    kept.pop(MARK, None)
    kept["SLURM_CONF"] = str(layout.conf)
    return kept


def daemon_environment(environ: Mapping[str, str], layout: Layout, path: str) -> dict[str, str]:
    """A small environment for daemons: what the caller happens to have set stays out."""
    kept = {name: environ[name] for name in _KEPT_FOR_DAEMONS if name in environ}
    return {
        **kept,
        "PATH": path,
        "LANG": "C",
        "SLURM_CONF": str(layout.conf),
        MARK: str(layout.root),
    }

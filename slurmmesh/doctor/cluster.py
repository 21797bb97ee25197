"""Slurm, the network between nodes, and the folder of the jobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from slurmmesh.config import Settings, load_settings
from slurmmesh.doctor.checks import Check
from slurmmesh.doctor.probe import ask
from slurmmesh.errors import SlurmmeshError
from slurmmesh.slurm import environment
from slurmmesh.slurm.addresses import Interface
from slurmmesh.slurm.client import SlurmClient
from slurmmesh.slurm.commands import is_installed, run

SECTION = "Cluster"

_VERSION_S = 6.0


def settings_here() -> tuple[Settings | None, list[Check]]:
    """The settings; without them, why there are none."""
    try:
        return load_settings(), []
    except SlurmmeshError as error:
        return None, [
            Check(SECTION, "settings", "error", str(error), "slurmmesh config shows them")
        ]


def slurm_checks(settings: Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Whether Slurm is there, and which; takes seconds at most."""
    if not is_installed("sbatch", environ):
        text = "not installed: jobs run on this machine only (--cluster local)"
        yield Check(SECTION, "slurm", "note", text)
        return
    clean = environment.for_client(environ)
    told = run(["sbatch", "--version"], environ=clean, timeout_s=_VERSION_S)
    version = told.stdout.strip() or "its version is not known"
    if reason := SlurmClient(settings, environ).why_not():
        advice = "scontrol ping tells more; --cluster local does without"
        yield Check(SECTION, "slurm", "warning", f"{version}; {reason}", advice)
    else:
        yield Check(SECTION, "slurm", "ok", f"{version}, its controller answers")
    if job := environ.get("SLURM_JOB_ID"):
        gpus = environ.get("SLURM_STEP_GPUS") or environ.get("SLURM_JOB_GPUS")
        text = f"this is in job {job}" + (f", with its GPUs {gpus} of this node" if gpus else "")
        yield Check(SECTION, "job", "ok", text)


def network_checks(here: list[Interface], wish: str) -> Iterator[Check]:
    """The interfaces by which other nodes can reach this one. ``wish``: the setting."""
    usable = [each for each in here if not each.flaw]
    if not usable:
        text = "no interface that other nodes can reach: jobs of one node only"
        yield Check(SECTION, "network", "warning", text, "; ".join(map(str, here)))
    for each in usable:
        yield Check(SECTION, each.name, "ok", f"{each.address}/{each.prefix}")
    if wish:
        yield Check(SECTION, "interface", "ok", f"asked for is {wish} (the setting)")


def folder_checks(root: Path, timeout_s: float) -> Iterator[Check]:
    """The folder of the jobs' folders. Network file systems hang: it is asked in a child."""
    values, failure = ask("folder", str(root), timeout_s=timeout_s)
    advice = "set job_root to a folder that all nodes see (docs/settings.md)"
    if failure or "refused" in values:
        text = f"{root}: {failure or values['refused']}"
        yield Check(SECTION, "job folders", "error", text, advice)
    elif not values["exists"]:
        yield Check(SECTION, "job folders", "ok", f"{root} (it will be made)")
    else:
        text = f"{root}, {values['free_gib']:.1f} GiB free"
        if values["free_gib"] < 1:
            yield Check(SECTION, "job folders", "warning", text, "logs need room")
        else:
            yield Check(SECTION, "job folders", "ok", text)

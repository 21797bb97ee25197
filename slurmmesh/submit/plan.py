"""What to do: the command line put over the settings, as a job and a way to run it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slurmmesh.config import Settings, load_layers
from slurmmesh.errors import UsageError
from slurmmesh.slurm.job import Resources, SlurmJob
from slurmmesh.submit.arguments import Request
from slurmmesh.submit.keys import submit_keys

# The flags of these add to what the settings have.
_ADDED = ("setup", "sbatch")
# Of each component of a heterogeneous job, but said once by most users.
_SHARED = ("account", "qos", "time", "reservation")
# What a job on this machine makes use of.
_USED_HERE = {"spares", "nodes", "gpus_per_node", "gres", "env", "chdir"}


@dataclass(frozen=True)
class Plan:
    """A job, and what submit shall do with it.

    Attributes:
        cluster: ``auto``, ``slurm`` or ``local``.
        given: the options of the command line.
    """

    job: SlurmJob
    settings: Settings
    given: Mapping[str, Any]
    cluster: str = "auto"
    dry_run: bool = False
    test_only: bool = False
    parsable: bool = False
    json: bool = False
    wait: bool = False
    follow: bool = False

    @property
    def only_for_slurm(self) -> list[str]:
        """The options given that change nothing for a job on this machine."""
        return [f"--{name.replace('_', '-')}" for name in self.given if name not in _USED_HERE]


def make(request: Request, cwd: Path) -> Plan:
    """Put a command line over the settings.

    Raises:
        ConfigError: a setting that cannot be.
        UsageError: an option that cannot be.
    """
    loaded = load_layers(
        config_file=request.config, profile=request.profile, submit_keys=submit_keys()
    )
    settings = loaded.settings
    defaults = {name: each.value for name, each in loaded.submit.items()}
    ways: dict[str, Any] = {
        name: defaults.pop(name) for name in ("cluster", "wait", "follow") if name in defaults
    }
    options = _over(defaults, request.options)
    options["chdir"] = cwd / options.get("chdir", "")
    options.setdefault("interface", settings.interface)
    if request.controller is not None:
        controller = {name: options[name] for name in _SHARED if name in options}
        controller.update(request.controller)
        options["controller"] = Resources(**controller)
    job = SlurmJob(request.program, args=request.args, job_root=settings.job_root, **options)
    ways.update(request.command)
    plan = Plan(job, settings, request.options, **ways)
    if plan.follow and job.array:
        raise UsageError(
            "--follow shows one job, --array makes many: use --wait, and `slurmmesh logs --follow`"
        )
    return plan


def _over(defaults: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Flags over defaults: they replace them, but lists and tables grow."""
    merged = {**defaults, **given}
    for name in _ADDED:
        if name in merged:
            merged[name] = (*defaults.get(name, ()), *given.get(name, ()))
    if "env" in merged:
        merged["env"] = {**defaults.get("env", {}), **given.get("env", {})}
    return merged

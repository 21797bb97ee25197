"""The variables ``SLURMMESH_*``: settings, submit's defaults, and what is neither. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from slurmmesh.config.layers import Layer, Origin, Sourced
from slurmmesh.config.nearest import near
from slurmmesh.config.options import SubmitKeys, from_text
from slurmmesh.config.places import expand, home_of
from slurmmesh.config.settings import PREFIX, SETTINGS, variable_of
from slurmmesh.errors import ConfigError, UsageError

SITE_CONFIG = "SLURMMESH_SITE_CONFIG"
PROFILE = "SLURMMESH_PROFILE"
JOB_FOLDER = "SLURMMESH_JOB_FOLDER"
# Variables that get a private folder on each node, and where those folders are.
NODE_FOLDERS = "SLURMMESH_NODE_FOLDERS"
NODE_FOLDER = "SLURMMESH_NODE_FOLDER"
# What a job tells its own processes: no settings, and nothing for a job that one of them submits.
OF_A_JOB = frozenset(
    {
        JOB_FOLDER,
        NODE_FOLDER,
        "SLURMMESH_JOB_ID",
        "SLURMMESH_CLUSTER",
        "SLURMMESH_NODES",
        "SLURMMESH_SPARES",
        "SLURMMESH_GPUS_PER_NODE",
        "SLURMMESH_STEP_TAG",
    }
)
# Which GPU libraries a process takes (docs/gpu.md): read by the bridge itself, in each process.
OF_THE_BRIDGE = frozenset(
    {"SLURMMESH_GPU_PLATFORM", "SLURMMESH_GPU_LIBRARY", "SLURMMESH_CCL_LIBRARY"}
)
_SUBMIT = PREFIX + "SUBMIT_"


def settings_of(environ: Mapping[str, str]) -> Layer:
    """The settings that have a variable.

    Raises:
        ConfigError: a value that cannot be one, with the name of its variable.
    """
    layer = {}
    for key, setting in SETTINGS.items():
        variable = variable_of(key)
        if (text := environ.get(variable)) is not None:
            try:
                value = setting.check(text)
                if key == "job_root":
                    value = expand(text, home_of(environ))
            except ValueError as error:
                raise ConfigError(f"{variable}={text!r} {error}") from None
            layer[key] = Sourced(value, Origin("variable", variable))
    return layer


def options_of(environ: Mapping[str, str], submit_keys: SubmitKeys) -> Layer:
    """The options of submit that have a variable.

    Raises:
        ConfigError: a value that cannot be one, with the name of its variable.
    """
    layer = {}
    for key, option in submit_keys.items():
        variable = _SUBMIT + key.upper()
        if (text := environ.get(variable)) is not None:
            origin = Origin("variable", variable)
            try:
                value = from_text(option, text)
            except UsageError as error:
                raise ConfigError(f"{variable}: {error}") from None
            except ValueError as error:
                raise ConfigError(f"{variable}={text!r} {error}") from None
            if option.kind == "table":
                for name, each in value.items():
                    layer[f"submit.{key}.{name}"] = Sourced(each, origin)
            else:
                layer[f"submit.{key}"] = Sourced(value, origin)
    return layer


def check_names(environ: Mapping[str, str], submit_keys: SubmitKeys) -> None:
    """Raise ConfigError for a ``SLURMMESH_*`` variable that nobody reads."""
    known = {
        SITE_CONFIG,
        PROFILE,
        NODE_FOLDERS,
        *OF_THE_BRIDGE,
        *(variable_of(key) for key in SETTINGS),
        *(_SUBMIT + key.upper() for key in submit_keys),
    }
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known | OF_A_JOB:
            hint = near(
                name[len(PREFIX) :],
                sorted(each[len(PREFIX) :] for each in known),
                "unset it; slurmmesh config shows what there is",
                prefix=PREFIX,
            )
            raise ConfigError(f"{name} is set, but there is no such setting: {hint}")

"""All layers of settings, read and merged."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurmmesh.config import files, variables
from slurmmesh.config.documents import Content, read
from slurmmesh.config.layers import DEFAULT, Layer, Origin, Sourced, merge
from slurmmesh.config.nearest import near
from slurmmesh.config.options import SubmitKeys
from slurmmesh.config.places import absolute, home_of
from slurmmesh.config.settings import SETTINGS, Settings
from slurmmesh.errors import ConfigError

_DEFAULTS: Layer = {key: Sourced(each.default, DEFAULT) for key, each in SETTINGS.items()}
_SUBMIT = "submit."


@dataclass(frozen=True)
class Loaded:
    """All that is set, and where.

    Attributes:
        values: by key; see ``slurmmesh.config.layers.Layer``.
        places: where settings files were looked for, each ranking over those before it.
        profile: the profile that was chosen, if one was.
        profiles: those that there are.
    """

    values: Mapping[str, Sourced]
    places: tuple[files.Place, ...] = ()
    profile: Sourced | None = None
    profiles: tuple[str, ...] = ()

    @property
    def settings(self) -> Settings:
        """The settings without their origins."""
        return Settings(**{key: self.values[key].value for key in SETTINGS})

    @property
    def submit(self) -> dict[str, Sourced]:
        """The defaults of submit's options, by their long names with ``_``.

        A value is a text, a bool, a tuple of texts or, of ``env``, a dict of texts, where None
        stands for the value in the environment of the submit. The origin of a dict is that of its
        highest entry.
        """
        found: dict[str, Sourced] = {}
        for key, each in self.values.items():
            if not key.startswith(_SUBMIT):
                continue
            option, _, entry = key.removeprefix(_SUBMIT).partition(".")
            if entry:
                others = found[option].value if option in found else {}
                found[option] = Sourced({**others, entry: each.value}, each.origin)
            else:
                found[option] = each
        return found


def load_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of this process; for all that is no front door.

    Inside a job they are what the job was submitted with, which stands in its environment. The
    options of submit are left unread.

    Raises:
        ConfigError: a value that cannot be one, with where it was set.
    """
    environ = os.environ if environ is None else environ
    if variables.JOB_FOLDER in environ:
        values = merge([_DEFAULTS, variables.settings_of(environ)])
        return Loaded(_with_absolute_root(values, _working_folder())).settings
    return load_layers(environ).settings


def load_layers(
    environ: Mapping[str, str] | None = None,
    *,
    cwd: str | None = None,
    config_file: str | None = None,
    profile: str | None = None,
    submit_keys: SubmitKeys | None = None,
) -> Loaded:
    """Everything that is set: defaults, then files, then the profile, then the environment.

    Args:
        environ: ``os.environ`` unless given.
        cwd: the working folder unless given.
        config_file: what ``--config`` names.
        profile: what ``--profile`` names.
        submit_keys: the options that ``[submit]`` and ``SLURMMESH_SUBMIT_*`` may set. Without
            them, these are left unread, and so are unknown variables.

    Raises:
        ConfigError: a file, key, variable or value that cannot be, with where it stands.
    """
    environ = os.environ if environ is None else environ
    cwd = _working_folder() if cwd is None else cwd
    if submit_keys is not None:
        variables.check_names(environ, submit_keys)
    home = home_of(environ)
    places = files.find(environ, cwd, config_file)
    contents = [
        read(files.read(place), place.kind, place.path, home, submit_keys)
        for place in places
        if place.found
    ]
    chosen = _choose(profile, environ, contents)
    values = merge(
        [
            _DEFAULTS,
            *(content.values for content in contents),
            *(content.profiles.get(chosen.value, {}) for content in contents if chosen),
            variables.settings_of(environ),
            variables.options_of(environ, submit_keys or {}),
        ]
    )
    return Loaded(
        _with_absolute_root(values, cwd), tuple(places), chosen, tuple(_profiles(contents))
    )


def _choose(
    flag: str | None, environ: Mapping[str, str], contents: Sequence[Content]
) -> Sourced | None:
    """The profile that the flag, else the environment, else the highest file chooses."""
    variable = environ.get(variables.PROFILE)
    if flag is not None:
        chosen = Sourced(flag, Origin("flag", "--profile"))
    elif variable is not None:
        chosen = Sourced(variable, Origin("variable", variables.PROFILE))
    else:
        in_files = [content.profile for content in contents if content.profile]
        if not in_files:
            return None
        chosen = in_files[-1]
    known = _profiles(contents)
    if chosen.value not in known:
        there_are = f"there are {', '.join(known)}" if known else "no settings file has any"
        hint = near(chosen.value, known, "")
        raise ConfigError(
            f"{chosen.origin}: there is no profile {chosen.value!r}: "
            + (f"{hint} ({there_are})" if hint else there_are)
        )
    return chosen


def _profiles(contents: Sequence[Content]) -> list[str]:
    return sorted({name for content in contents for name in content.profiles})


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def _with_absolute_root(values: dict[str, Sourced], cwd: str | None) -> dict[str, Sourced]:
    root = values["job_root"]
    if cwd is None and not os.path.isabs(root.value):
        raise ConfigError(
            "the current folder no longer exists: change to another, or set SLURMMESH_JOB_ROOT "
            "to an absolute path"
        )
    path = Path(absolute(root.value, cwd or "/", None))
    return {**values, "job_root": Sourced(path, root.origin)}

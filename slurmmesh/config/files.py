"""Finding and reading settings files: the only I/O of this room."""

from __future__ import annotations

import os
import pwd
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from slurmmesh.config.layers import SourceKind
from slurmmesh.config.places import absolute, home_of
from slurmmesh.config.variables import SITE_CONFIG
from slurmmesh.errors import ConfigError

SITE_FILE = "/etc/slurmmesh/config.toml"
PROJECT_FILE = "slurmmesh.toml"
# Far more than anybody would write.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class Place:
    """Where a settings file was looked for.

    Attributes:
        path: absolute. Of a project that has none: where it was looked for first.
        found: whether it is there. One that was named explicitly always is.
    """

    kind: SourceKind
    path: str
    found: bool


def find(environ: Mapping[str, str], cwd: str | None, config_file: str | None) -> list[Place]:
    """The places of settings files, each ranking over those before it.

    Args:
        cwd: the working folder; None if it no longer exists.
        config_file: what ``--config`` names.

    Raises:
        ConfigError: a file that was named explicitly is not there.
    """
    home = home_of(environ)
    places = []
    site = environ.get(SITE_CONFIG)
    if site is None:
        places.append(Place("site", SITE_FILE, os.path.lexists(SITE_FILE)))
    elif site:
        places.append(_named("site", site, SITE_CONFIG, cwd, home))
    folder = environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(folder):  # as its standard says
        folder = os.path.join(home, ".config") if home else ""
    if folder:
        path = os.path.join(folder, "slurmmesh", "config.toml")
        places.append(Place("user", path, os.path.lexists(path)))
    named = (
        _named("config", config_file, "--config", cwd, home) if config_file is not None else None
    )
    if cwd is not None:
        paths = [os.path.join(parent, PROJECT_FILE) for parent in _and_parents(cwd)]
        project = next(filter(os.path.lexists, paths), None)
        # Named by --config as well, it is trusted, whoever wrote it.
        if not (project and named and os.path.realpath(project) == os.path.realpath(named.path)):
            places.append(Place("project", project or paths[0], project is not None))
    return [*places, named] if named else places


def read(place: Place) -> bytes:
    """The content of a settings file.

    Raises:
        ConfigError: it cannot be read, is too large, or is open to people who could so put
            commands into somebody's job.
    """
    try:
        with open(place.path, "rb", opener=_without_waiting) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise ConfigError(f"{place.path} is no file: settings cannot be read from it")
            _check_writers(place, status)
            raw = file.read(_MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"{place.path}: these settings cannot be read: {error.strerror or error}"
        ) from None
    if len(raw) > _MOST_BYTES:
        raise ConfigError(f"{place.path} has more than {_MOST_BYTES >> 20} MiB: no settings file")
    return raw


def _without_waiting(path: str, flags: int) -> int:
    """A fifo must not make us wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _check_writers(place: Place, status: os.stat_result) -> None:
    """A settings file can add lines of shell to a job: who may write it, runs commands as us."""
    if status.st_mode & stat.S_IWOTH:
        raise ConfigError(
            f"{place.path} can be written by everybody, who could so run commands in your jobs: "
            f"chmod o-w {place.path!r}"
        )
    if place.kind != "project":
        return
    # It was found by looking upward, maybe in a folder like /tmp, or in that of a colleague.
    strangers = {status.st_uid, os.lstat(place.path).st_uid} - {0, os.geteuid()}
    if strangers:
        raise ConfigError(
            f"{place.path} belongs to {_name_of(min(strangers))}, who could so run commands in "
            f"your jobs: if you trust it, give --config {shlex.quote(place.path)}; if not, put a "
            f"{PROJECT_FILE} of your own, which may be empty, into the folder you work in"
        )


def _named(kind: SourceKind, text: str, by: str, cwd: str | None, home: str | None) -> Place:
    try:
        path = absolute(text, cwd or "", home)
    except ValueError as error:
        raise ConfigError(f"{by} {text!r} {error}") from None
    if not text or not os.path.isabs(path) or not os.path.lexists(path):
        raise ConfigError(f"{by} {text!r}: there is no such file")
    return Place(kind, path, True)


def _and_parents(folder: str) -> Iterator[str]:
    while True:
        yield folder
        parent = os.path.dirname(folder)
        if parent == folder:
            return
        folder = parent


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"

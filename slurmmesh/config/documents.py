"""A settings file's content to values that know their line. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from slurmmesh.config.layers import Layer, Origin, Sourced, SourceKind
from slurmmesh.config.lines import KeyPath, lines_of
from slurmmesh.config.nearest import near
from slurmmesh.config.options import SubmitKeys, from_file, what_is
from slurmmesh.config.places import absolute
from slurmmesh.config.settings import SETTINGS
from slurmmesh.errors import ConfigError, UsageError

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")


@dataclass(frozen=True)
class Content:
    """What a settings file says.

    Attributes:
        values: those that always hold.
        profiles: those of each profile.
        profile: the profile that it chooses, if it does.
    """

    values: Layer
    profiles: Mapping[str, Layer] = field(default_factory=dict)
    profile: Sourced | None = None


def read(
    raw: bytes,
    kind: SourceKind,
    path: str,
    home: str | None,
    submit_keys: SubmitKeys | None,
) -> Content:
    """Check a settings file, all profiles included.

    Args:
        raw: its bytes.
        path: where it lies, absolute; relative paths in it are meant from that folder.
        home: what ``~`` stands for.
        submit_keys: the options that may stand in ``[submit]``; None leaves that table unread.

    Raises:
        ConfigError: it is no TOML, or a key or value in it cannot be. Names file and line.
    """
    data, lines = _parse(raw, path)
    return _Reader(kind, path, lines, home, submit_keys).content(data)


def _parse(raw: bytes, path: str) -> tuple[dict[str, Any], dict[KeyPath, int]]:
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        where = Origin("config", path, raw.count(b"\n", 0, error.start) + 1)
        raise ConfigError(f"{where}: it is no text in UTF-8") from None
    loads = _toml_reader()
    try:
        return loads(text), lines_of(text, loads)
    except (ValueError, RecursionError) as error:
        line: int | None = None
        if place := _PLACE.search(str(error)):
            line = int(place[1] or text.rstrip("\n").count("\n") + 1)
        problem = _PLACE.sub("", str(error))
        raise ConfigError(f"{Origin('config', path, line)}: it is no TOML: {problem}") from None


def _toml_reader() -> Callable[[str], dict[str, Any]]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    return tomllib.loads


@dataclass(frozen=True)
class _Reader:
    kind: SourceKind
    path: str
    lines: Mapping[KeyPath, int]
    home: str | None
    submit_keys: SubmitKeys | None

    def content(self, data: dict[str, Any]) -> Content:
        own = {key: value for key, value in data.items() if key not in ("profile", "profiles")}
        profiles = data.get("profiles", {})
        self._need_table(profiles, ("profiles",))
        return Content(
            self._settings(own, ()),
            {name: self._settings(table, ("profiles", name)) for name, table in profiles.items()},
            self._choice(data["profile"]) if "profile" in data else None,
        )

    def _choice(self, name: Any) -> Sourced:
        origin = self._origin(("profile",))
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{origin}: profile is the name of one, in quotes")
        return Sourced(name, origin)

    def _settings(self, table: Any, above: KeyPath) -> Layer:
        """The settings of one table and, under ``submit``, the options."""
        self._need_table(table, above)
        layer: dict[str, Sourced] = {}
        for path, key, value in self._keys(table, above):
            if key == "submit":
                layer.update(self._options(value, path))
            elif key in SETTINGS:
                layer[key] = self._sourced(path, partial(self._setting, key), value)
            else:
                raise self._unknown_setting(path, key)
        return layer

    def _setting(self, key: str, value: Any) -> Any:
        setting = SETTINGS[key]
        wanted = "a number" if setting.is_number else "text"
        if what_is(value) != wanted:
            quotes = "without quotes" if setting.is_number else "in quotes"
            raise ValueError(f"is {what_is(value)}: write {wanted}, {quotes}")
        if wanted == "text" and "\0" in value:
            raise ValueError("has a NUL character in it")
        checked = setting.check(value)
        return absolute(str(checked), self._folder, self.home) if key == "job_root" else checked

    def _options(self, table: Any, above: KeyPath) -> Layer:
        self._need_table(table, above)
        layer: dict[str, Sourced] = {}
        if self.submit_keys is None:
            return layer
        for path, key, value in self._keys(table, above):
            option = self.submit_keys.get(key)
            if option is None:
                raise self._unknown_option(path, key)
            check = partial(from_file, option, folder=self._folder, home=self.home)
            found = self._sourced(path, check, value)
            if option.kind != "table":
                layer[f"submit.{key}"] = found
                continue
            for name, each in found.value.items():
                origin = self._origin((*path, name), path)
                layer[f"submit.{key}.{name}"] = Sourced(each, origin)
        return layer

    def _sourced(self, path: KeyPath, check: Callable[[Any], Any], value: Any) -> Sourced:
        origin = self._origin(path)
        try:
            return Sourced(check(value), origin)
        except UsageError as error:
            raise ConfigError(f"{origin}: {error}") from None
        except ValueError as error:
            shown = f" = {value!r:.80}" if what_is(value) in ("text", "a number") else ""
            raise ConfigError(f"{origin}: {path[-1]}{shown} {error}") from None

    def _keys(self, table: dict[str, Any], above: KeyPath) -> Iterator[tuple[KeyPath, str, Any]]:
        """Each key of a table as it is written there, with all above it, and as Python has it."""
        spelling: dict[str, str] = {}
        for written, value in table.items():
            key, path = written.replace("-", "_"), (*above, written)
            if (other := spelling.setdefault(key, written)) != written:
                raise ConfigError(
                    f"{self._origin(path)}: {written} and {other} are the same: keep one"
                )
            yield path, key, value

    def _need_table(self, value: Any, path: KeyPath) -> None:
        if not isinstance(value, dict):
            raise ConfigError(
                f"{self._origin(path)}: {path[-1]} is {what_is(value)}: write a table, "
                f"[{'.'.join(path)}]"
            )

    def _unknown_setting(self, path: KeyPath, key: str) -> ConfigError:
        if key in (self.submit_keys or {}):
            hint = f"it is an option of submit: put it under [{'.'.join((*path[:-1], 'submit'))}]"
        elif key in ("profile", "profiles"):
            hint = "it stands at the top of a file, in no profile"
        else:
            at_top = ("submit",) if len(path) > 1 else ("submit", "profile", "profiles")
            hint = near(key, (*SETTINGS, *at_top), f"there are {', '.join(SETTINGS)}")
        return ConfigError(f"{self._origin(path)}: there is no setting {path[-1]!r}: {hint}")

    def _unknown_option(self, path: KeyPath, key: str) -> ConfigError:
        if key in SETTINGS:
            hint = "it is a setting: put it above this table"
        else:
            hint = near(key, self.submit_keys or (), "slurmmesh submit --help tells all")
        return ConfigError(
            f"{self._origin(path)}: no option {path[-1]!r} of submit can stand here: {hint}"
        )

    @property
    def _folder(self) -> str:
        return self.path.rpartition("/")[0] or "/"

    def _origin(self, path: KeyPath, else_: KeyPath = ()) -> Origin:
        profile = path[1] if path[0] == "profiles" and len(path) > 2 else ""
        return Origin(self.kind, self.path, self.lines.get(path, self.lines.get(else_)), profile)

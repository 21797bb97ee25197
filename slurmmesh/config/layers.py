"""Values that know where they come from, and the one rule by which they are merged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

SourceKind = Literal["default", "site", "user", "project", "config", "variable", "flag"]


@dataclass(frozen=True)
class Origin:
    """Where a value was set.

    Attributes:
        kind: ``site``, ``user``, ``project`` and ``config`` (``--config``) are files.
        name: the file's path, the variable or the flag.
        line: in the file, from 1.
        profile: the profile in that file, if it was set in one.
    """

    kind: SourceKind
    name: str = ""
    line: int | None = None
    profile: str = ""

    def __str__(self) -> str:
        if self.kind == "default":
            return "default"
        name = self.name if self.name.isprintable() else repr(self.name)
        line = "" if self.line is None else f":{self.line}"
        return name + line + (f" (profile {self.profile})" if self.profile else "")


DEFAULT = Origin("default")


@dataclass(frozen=True)
class Sourced:
    """A value and where it was set."""

    value: Any
    origin: Origin


# By key: ``job_root``; ``submit.partition`` for an option of submit; ``submit.env.NAME`` for an
# entry of an option that is a table.
Layer = Mapping[str, Sourced]


def merge(layers: Iterable[Layer]) -> dict[str, Sourced]:
    """All values, each from the last layer that has it. Values are never joined."""
    merged: dict[str, Sourced] = {}
    for layer in layers:
        merged.update(layer)
    return merged

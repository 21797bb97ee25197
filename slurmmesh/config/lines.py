"""Where in a TOML text each key stands, which Python's reader does not tell."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

KeyPath = tuple[str, ...]

# What ends no statement by itself: strings (those over several lines first), comments, the rest.
_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}'
    r"|'''.*?'{3,5}"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'"
    r"|#[^\n]*"
    r"|[\[{]|[\]}]|\n|[^\"'#\[\]{}\n]+",
    re.DOTALL,
)


def lines_of(text: str, loads: Callable[[str], dict[str, Any]]) -> dict[KeyPath, int]:
    """The line, from 1, of each key and table of a valid TOML text, by its path.

    ``loads`` reads TOML. Of a table in several pieces the first counts.
    """
    found: dict[KeyPath, int] = {}
    table: KeyPath = ()
    for line, statement in _statements(text):
        is_header = statement.startswith("[")
        paths = list(_paths(loads(statement), () if is_header else table))
        if is_header:
            table = paths[-1]
        for path in paths:
            found.setdefault(path, line)
    return found


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """Headers of tables, and keys with their values, each with its line."""
    line = start = 1
    depth = 0
    statement = ""
    for match in _TOKEN.finditer(text + "\n"):
        token = match[0]
        if token == "\n" and depth == 0:
            if statement.strip():
                yield start, statement.strip()
            statement, start = "", line + 1
        elif not token.startswith("#"):
            depth += (token in "[{") - (token in "]}")
            statement += token
        line += token.count("\n")


def _paths(content: dict[str, Any], above: KeyPath) -> Iterator[KeyPath]:
    for key, value in content.items():
        yield (*above, key)
        if isinstance(value, dict):
            yield from _paths(value, (*above, key))

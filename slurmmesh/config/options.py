"""Values of submit's options: from a settings file or a variable to what the flag would give.

Which options there are is told by the caller.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slurmmesh.config.names import is_variable
from slurmmesh.config.places import absolute

Kind = Literal["text", "number", "path", "template", "flag", "optional", "list", "table"]

_BOOLS = {
    **dict.fromkeys(("1", "true", "yes", "on"), True),
    **dict.fromkeys(("0", "false", "no", "off"), False),
}


@dataclass(frozen=True)
class SubmitKey:
    """What may stand in one option.

    Attributes:
        kind: ``text``; ``number``, a whole one; ``path``; ``template``, a bare name or a path with
            a slash; ``flag``, true or false; ``optional``, true, false or a text; ``list`` of
            texts; ``table``, texts by name.
        check: raises UsageError for a text that cannot be, of a list for each.
    """

    kind: Kind
    check: Callable[[str], object] = lambda text: None


# By the option's long name, ``-`` written as ``_``.
SubmitKeys = Mapping[str, SubmitKey]


def from_file(key: SubmitKey, value: Any, folder: str, home: str | None) -> Any:
    """The option's value: a text, an int, a bool, a tuple of texts, or a dict of them.

    A relative path is meant from ``folder``. A number where a text belongs is taken for its text.
    None in a dict is to be taken from the environment of the submit.

    Raises:
        ValueError: it cannot be that. Its text goes on from a description of the value.
        UsageError: the option's check refuses it.
    """
    match key.kind:
        case "flag":
            return _need(bool, value, "true or false, without quotes")
        case "number":
            return _need(int, value, "a whole number, without quotes")
        case "list":
            return _checked(key, map(_text, _need(list, value, 'a list, such as ["..."]')))
        case "table":
            if isinstance(value, list):
                return dict(_assignment(_text(each)) for each in value)
            table = _need(dict, value, 'a table, such as { NAME = "value" }')
            return {_name(name): _text(each, may_be_empty=True) for name, each in table.items()}
        case "optional" if isinstance(value, bool):
            return value
    text = _text(value)
    if key.kind == "path" or (key.kind == "template" and "/" in text):
        text = absolute(text, folder, home)
    return _checked(key, [text])[0]


def from_text(key: SubmitKey, text: str) -> Any:
    """The same of a variable's text. Of a list or table each line is one entry.

    Raises:
        ValueError, UsageError: as of ``from_file``.
    """
    lines = [line for line in text.splitlines() if line.strip()]
    as_bool = _BOOLS.get(text.lower())
    match key.kind:
        case "flag" | "optional" if as_bool is not None:
            return as_bool
        case "flag":
            raise ValueError("is neither true nor false: give 1 or 0")
        case "number":
            if not re.fullmatch(r"[+-]?\d{1,9}", text, re.ASCII):
                raise ValueError("is no whole number")
            return int(text)
        case "list":
            return _checked(key, lines)
        case "table":
            return dict(_assignment(line) for line in lines)
    return _checked(key, [_text(text)])[0]


def what_is(value: Any) -> str:
    """What a value of TOML is called."""
    names = {str: "text", int: "a number", float: "a number", bool: "true or false"}
    return {**names, list: "a list", dict: "a table"}.get(type(value), "a date or a time")


def _need(type_: type, value: Any, wanted: str) -> Any:
    if type(value) is not type_:  # True is an int as well
        raise ValueError(f"is {what_is(value)}: write {wanted}")
    return value


def _checked(key: SubmitKey, texts: Iterable[str]) -> tuple[str, ...]:
    found = tuple(texts)
    for text in found:
        key.check(text)
    return found


def _text(value: Any, may_be_empty: bool = False) -> str:
    if what_is(value) == "a number":
        if not math.isfinite(value):
            raise ValueError("is not finite")
        return str(value)
    if not isinstance(value, str):
        raise ValueError(f"has {what_is(value)} where a text belongs, which stands in quotes")
    if not value and not may_be_empty:
        raise ValueError("is empty: give a value, or leave it out")
    if "\0" in value:
        raise ValueError("has a NUL character in it")
    return value


def _assignment(text: str) -> tuple[str, str | None]:
    name, equals, value = text.partition("=")
    return _name(name), value if equals else None


def _name(name: str) -> str:
    if not is_variable(name):
        raise ValueError(f"has {name!r} for the name of a variable")
    return name

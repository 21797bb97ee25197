"""What doctor finds: checks, how bad each is, and how they are shown. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from slurmmesh.telemetry.wording import one_line, things

State = Literal["ok", "note", "warning", "error"]
STATES: tuple[State, ...] = ("ok", "note", "warning", "error")

_WIDTH = 100
_INDENT = 34
_LONGEST = 4000


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Attributes:
        section: what it belongs to.
        name: of the thing.
        state: ``note``: it may be as it should be, or not; ``warning``: something will be slow, or
            fail at times; ``error``: something does not work.
        text: what was found.
        advice: what to do about it; empty where there is nothing to do.
    """

    section: str
    name: str
    state: State
    text: str
    advice: str = ""


def worst(checks: Iterable[Check]) -> State:
    """The worst state among these."""
    return max((check.state for check in checks), key=STATES.index, default="ok")


def as_text(title: str, checks: Sequence[Check]) -> str:
    """A report for a person: a section each, a line or more for each check."""
    lines = [title]
    section = ""
    for check in checks:
        if check.section != section:
            section = check.section
            lines += ["", section]
        lines += _lines(check)
    counts = ((sum(c.state == state for c in checks), state) for state in ("error", "warning"))
    told = [things(number, state) for number, state in counts if number]
    return "\n".join([*lines, "", ", ".join(told) or "nothing to complain of"]) + "\n"


def _lines(check: Check) -> list[str]:
    head = f"  {check.state:8} {one_line(check.name):22} "
    gap = " " * _INDENT
    found = _wrapped(check.text)
    lines = [head + found[0] if len(head) <= _INDENT else head, *(gap + line for line in found[1:])]
    if len(head) > _INDENT:
        lines.insert(1, gap + found[0])
    if check.advice:
        first, *others = _wrapped(check.advice)
        lines += [f"{gap}→ {first}", *(f"{gap}  {line}" for line in others)]
    return [line.rstrip() for line in lines]


def _wrapped(text: str) -> list[str]:
    """Lines that fit, at least one; lines of the text stay lines."""
    found: list[str] = []
    for line in (one_line(each, _LONGEST) for each in text.splitlines()):
        # Paths stay whole, so that they can be copied.
        width = _WIDTH - _INDENT
        found += textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    return found or [""]


def as_data(host: str, version: str, emulated: bool, checks: Sequence[Check]) -> dict[str, Any]:
    """The same for a program."""
    return {
        "host": host,
        "slurmmesh": version,
        "emulated": emulated,
        "worst": worst(checks),
        "checks": [asdict(check) for check in checks],
    }

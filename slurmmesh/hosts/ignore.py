"""What .gitignore files leave out, by git's own rules. Pure: text and paths in, answers out.

Paths are relative to the top of the tree, with ``/`` between their parts. Matching is done on
bytes, as git does it: a ``?`` stands for one of them. Two stars that do not fill a part of the
path are one star, as git's manual says (some releases of git take them for more).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass

ALWAYS = frozenset({".git", "__pycache__", ".venv"})
"""Names of what is left out whatever the rules say."""

_CLASSES = {
    b"alnum": rb"0-9A-Za-z",
    b"alpha": rb"A-Za-z",
    b"blank": rb" \t",
    b"cntrl": rb"\x00-\x1f\x7f",
    b"digit": rb"0-9",
    b"graph": rb"!-~",
    b"lower": rb"a-z",
    b"print": rb" -~",
    b"punct": rb"!-/:-@\[-`{-~",
    b"space": rb"\s",
    b"upper": rb"A-Z",
    b"xdigit": rb"0-9A-Fa-f",
}


@dataclass(frozen=True)
class Rule:
    """One line of a .gitignore file.

    Attributes:
        pattern: matches the whole path below the file's folder if ``anchored``, else the name.
        negated: what matches is kept.
        folders_only: it is about folders.
    """

    pattern: re.Pattern[bytes]
    negated: bool
    folders_only: bool
    anchored: bool


class IgnoreRules:
    """The rules that hold in one folder: those of its own file, and of all above it.

    Args:
        base: the folder, ``""`` for the top or ending in ``/``.
        lines: of its .gitignore file.
        above: the rules of the folder above.
    """

    def __init__(
        self, base: str = "", lines: Iterable[str] = (), above: IgnoreRules | None = None
    ) -> None:
        self._base = os.fsencode(base)
        self._rules = [rule for line in lines if (rule := parse_rule(line)) is not None]
        self._rules.reverse()  # of the lines that match the last one counts
        self._above = above

    def ignores(self, path: str, is_folder: bool) -> bool | None:
        """Whether ``path`` is left out, if the folder it is in is not; None if no rule tells."""
        return self._verdict(os.fsencode(path), is_folder)

    def _verdict(self, path: bytes, is_folder: bool) -> bool | None:
        below = path[len(self._base) :]
        name = path.rpartition(b"/")[2]
        for rule in self._rules:
            if rule.folders_only and not is_folder:
                continue
            if rule.pattern.fullmatch(below if rule.anchored else name):
                return not rule.negated
        return self._above._verdict(path, is_folder) if self._above is not None else None


def parse_rule(line: str) -> Rule | None:
    """Read a line; None if it says nothing: blank, a comment, or no valid pattern."""
    text = os.fsencode(line)
    text = _without_trailing_spaces(text.rstrip(b"\r\n"))
    if text.startswith(b"#"):
        return None
    negated = text.startswith(b"!")
    text = text[1:] if negated else text
    folders_only = text.endswith(b"/")
    text = text[:-1] if folders_only else text
    anchored = b"/" in text
    text = text.removeprefix(b"/")
    source = _translate(text)
    if not text or source is None:
        return None
    return Rule(re.compile(source, re.DOTALL), negated, folders_only, anchored)


def _without_trailing_spaces(text: bytes) -> bytes:
    """Spaces at the end do not count, unless the first of them follows a backslash."""
    bare = text.rstrip(b" ")
    backslashes = len(bare) - len(bare.rstrip(b"\\"))
    return text[: len(bare) + 1] if backslashes % 2 and bare != text else bare


def _translate(glob: bytes) -> bytes | None:
    """A pattern of git's as a regular expression; None if it can match nothing."""
    out = b""
    at = 0
    while at < len(glob):
        char = glob[at : at + 1]
        if char == b"*":
            stars = len(glob) - at - len(glob[at:].lstrip(b"*"))
            part, at = _translate_stars(glob, at, at + stars)
            out += part
        elif char == b"?":
            out, at = out + b"[^/]", at + 1
        elif char == b"[":
            found = _translate_set(glob, at + 1)
            if found is None:
                return None
            out, at = out + found[0], found[1]
        elif char == b"\\":
            if at + 1 == len(glob):
                return None
            out, at = out + re.escape(glob[at + 1 : at + 2]), at + 2
        else:
            out, at = out + re.escape(char), at + 1
    return out


def _translate_stars(glob: bytes, start: int, end: int) -> tuple[bytes, int]:
    """Stars from ``start`` to ``end``; two that fill a part of the path stand for any folders."""
    if end - start >= 2 and (start == 0 or glob[start - 1 : start] == b"/"):
        if end == len(glob):
            return b".*", end
        if glob[end : end + 1] == b"/":
            return b"(?:.*/)?", end + 1
    return b"[^/]*", end


def _translate_set(glob: bytes, start: int) -> tuple[bytes, int] | None:
    """A set of characters, from after its bracket; None if it does not end."""
    at = start
    negated = glob[at : at + 1] in (b"!", b"^")
    at += negated
    items = b""
    first = True
    while True:
        char = glob[at : at + 1]
        if not char:
            return None
        if char == b"]" and not first:
            break
        first = False
        if glob[at : at + 2] == b"[:":
            end = glob.find(b"]", at + 2)
            if end < 0:
                return None
            if glob[end - 1 : end] == b":" and end > at + 2:
                named = _CLASSES.get(glob[at + 2 : end - 1])
                if named is None:
                    return None
                items, at = items + named, end + 1
                continue
        low, at = _one_of_set(glob, at)
        if glob[at : at + 1] == b"-" and glob[at + 1 : at + 2] not in (b"", b"]"):
            high, at = _one_of_set(glob, at + 1)
            if not low or not high:
                return None
            backwards = high < low  # then it is its first character alone
            items += re.escape(low) + (b"" if backwards else b"-" + re.escape(high))
        elif not low:
            return None
        else:
            items += re.escape(low)
    return b"(?!/)[" + (b"^" if negated else b"") + items + b"]", at + 1


def _one_of_set(glob: bytes, at: int) -> tuple[bytes, int]:
    """A character of a set, which may be quoted, and where the next begins."""
    if glob[at : at + 1] == b"\\":
        at += 1
    return glob[at : at + 1], at + 1

"""Slurm host lists to host names and back, without scontrol (compute nodes may not have it)."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable

from slurmmesh.errors import HostListError

# A list this long is a mistake, not a cluster; it would only eat the memory of the head node.
MAX_HOSTS = 1_000_000
_BLANKS = " \t\n\r\v\f"
_SEPARATORS = "," + _BLANKS
# More digits than any range of hosts needs; longer numbers are compared as they are written.
_MOST_DIGITS = 18
_DIGITS = re.compile(rf"([0-9]{{1,{_MOST_DIGITS}}})")
_NO_NAME = re.compile(rf"[\[\]{_SEPARATORS}]")


def expand(text: str) -> list[str]:
    """The host names of a list such as ``node[001-003,007],login1``, in the order written.

    Several brackets in one name give their cross product, the last one running fastest. A name
    may go on after a bracket (``b2u[05,02]n3``). The width of a range's first number is kept
    (``[08-10]`` gives 08, 09, 10). Names that occur twice are given twice. Names are separated
    by commas or blanks; blanks around the numbers in a bracket do no harm.

    Raises:
        HostListError: brackets or ranges that make no sense, with the position.
    """
    hosts: list[str] = []
    position = 0
    while position < len(text):
        if text[position] in _SEPARATORS:
            position += 1
            continue
        names, position = _expand_name(text, position, MAX_HOSTS - len(hosts))
        hosts += names
    return hosts


def compress(hosts: Iterable[str]) -> str:
    """A short list that ``expand`` turns into these names again, in this order.

    Neighbours that differ in one number share a bracket (``node[1-3]-ib``), and brackets that
    then still differ in one number share another (``rack[0-1]_blade[0-1]``).

    Raises:
        HostListError: a name that no list can hold: empty, or with a bracket, comma or blank.
    """
    names = [_split(host) for host in hosts]
    fields = max((len(name) // 2 for name in names), default=0)
    for field in range(fields):
        names = _merge(names, -2 * (field + 1))
    return ",".join(_join(name) for name in names)


def _expand_name(text: str, start: int, room: int) -> tuple[list[str], int]:
    """The hosts of one name with its brackets, and where the next one begins."""
    parts: list[list[str]] = []
    count = 1
    position = start
    while position < len(text) and text[position] not in _SEPARATORS:
        if text[position] == "]":
            raise HostListError(text, position, "']' without a '[' before it")
        if text[position] == "[":
            numbers, end = _expand_bracket(text, position, room)
        else:
            end = position
            while end < len(text) and text[end] not in "[]" + _SEPARATORS:
                end += 1
            numbers = [text[position:end]]
        parts.append(numbers)
        count *= len(numbers)
        if count > room:
            raise HostListError(text, position, f"more than {MAX_HOSTS} hosts")
        position = end
    return ["".join(pieces) for pieces in itertools.product(*parts)], position


def _expand_bracket(text: str, start: int, room: int) -> tuple[list[str], int]:
    """The numbers of ``[...]`` at ``start``, and the position after it."""
    close = text.find("]", start)
    if close < 0:
        raise HostListError(text, start, "'[' without a ']' after it")
    numbers: list[str] = []
    position = start + 1
    for item in text[position:close].split(","):
        blanks = len(item) - len(item.lstrip(_BLANKS))
        numbers += _expand_range(text, position + blanks, item.strip(_BLANKS), room - len(numbers))
        position += len(item) + 1
    return numbers, close + 1


def _expand_range(text: str, position: int, item: str, room: int) -> list[str]:
    first, dash, last = item.partition("-")
    for number in (first, last) if dash else (first,):
        if not (number.isascii() and number.isdigit()):
            raise HostListError(text, position, f"{item!r} is no number and no range 'from-to'")
    if not dash:
        return [first]
    low, high = (number.lstrip("0") or "0" for number in (first, last))
    if max(len(low), len(high)) > _MOST_DIGITS:
        raise HostListError(
            text, position, f"a range of numbers with more than {_MOST_DIGITS} digits"
        )
    if int(high) < int(low):
        raise HostListError(text, position, f"the range {item!r} runs backwards")
    if int(high) - int(low) >= room:
        raise HostListError(text, position, f"more than {MAX_HOSTS} hosts")
    return [f"{number:0{len(first)}}" for number in range(int(low), int(high) + 1)]


# A name in pieces: text and tuples of numbers by turns, beginning and ending with text.
_Name = tuple[str | tuple[str, ...], ...]


def _split(host: str) -> _Name:
    if not host:
        raise HostListError(host, 0, "an empty name")
    if wrong := _NO_NAME.search(host):
        raise HostListError(host, wrong.start(), f"{wrong[0]!r} cannot be in a name")
    pieces = _DIGITS.split(host)
    return tuple((piece,) if index % 2 else piece for index, piece in enumerate(pieces))


def _merge(names: Iterable[_Name], field: int) -> list[_Name]:
    """Join neighbours that differ in this field only; it counts from the end.

    The fields before it still are single numbers then, so that the order stays.
    """

    def others(name: _Name) -> tuple[_Name, _Name] | None:
        return (name[:field], name[field + 1 :]) if len(name) >= -field else None

    merged: list[_Name] = []
    for key, group in itertools.groupby(names, key=others):
        if key is None:
            merged += group
        else:
            numbers = itertools.chain.from_iterable(name[field] for name in group)
            merged.append((*key[0], tuple(numbers), *key[1]))
    return merged


def _join(name: _Name) -> str:
    return "".join(piece if isinstance(piece, str) else _bracket(piece) for piece in name)


def _bracket(numbers: tuple[str, ...]) -> str:
    if len(numbers) == 1:
        return numbers[0]
    ranges: list[list[str]] = []
    for number in numbers:
        if ranges and number == _after(ranges[-1][0], ranges[-1][-1]):
            ranges[-1][1:] = [number]
        else:
            ranges.append([number])
    return f"[{','.join('-'.join(ends) for ends in ranges)}]"


def _after(first: str, last: str) -> str:
    """What follows ``last`` in a range that begins with ``first``."""
    return f"{int(last) + 1:0{len(first)}}"

"""Slurm host lists to host names, without asking scontrol (compute nodes may not have it)."""

from __future__ import annotations

import itertools

from slurmmesh.errors import HostListError

# A list this long is a mistake, not a cluster; it would only eat the memory of the head node.
MAX_HOSTS = 1_000_000


def expand(text: str) -> list[str]:
    """The host names of a list such as ``node[001-003,007],login1``, in the order written.

    Several brackets in one name give their cross product, the last one running fastest. A name
    may go on after a bracket (``b2u[05,02]n3``). The width of a range's first number is kept
    (``[08-10]`` gives 08, 09, 10). Names that occur twice are given twice. Names are separated
    by commas or blanks.

    Raises:
        HostListError: brackets or ranges that make no sense, with the position.
    """
    hosts: list[str] = []
    position = 0
    while position < len(text):
        if text[position] in ", \t\n":
            position += 1
            continue
        names, position = _expand_name(text, position, MAX_HOSTS - len(hosts))
        hosts += names
    return hosts


def _expand_name(text: str, start: int, room: int) -> tuple[list[str], int]:
    """The hosts of one name with its brackets, and where the next one begins."""
    parts: list[list[str]] = []
    count = 1
    position = start
    while position < len(text) and text[position] not in ", \t\n":
        if text[position] == "]":
            raise HostListError(text, position, "']' without a '[' before it")
        if text[position] == "[":
            numbers, end = _expand_bracket(text, position, room)
        else:
            end = position
            while end < len(text) and text[end] not in "[], \t\n":
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
        numbers += _expand_range(text, position, item, room - len(numbers))
        position += len(item) + 1
    return numbers, close + 1


def _expand_range(text: str, position: int, item: str, room: int) -> list[str]:
    first, dash, last = item.partition("-")
    for number in (first, last) if dash else (first,):
        if not (number.isascii() and number.isdigit()):
            raise HostListError(text, position, f"{item!r} is no number and no range 'from-to'")
    if not dash:
        return [first]
    if int(last) < int(first):
        raise HostListError(text, position, f"the range {item!r} runs backwards")
    if int(last) - int(first) >= room:
        raise HostListError(text, position, f"more than {MAX_HOSTS} hosts")
    return [f"{number:0{len(first)}}" for number in range(int(first), int(last) + 1)]

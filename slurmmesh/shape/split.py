"""The sizes that result from splitting dimensions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

from slurmmesh.errors import UsageError
from slurmmesh.shape.extent import Extent, as_int, check_label
from slurmmesh.shape.select import check_dimension

Group = Sequence[tuple[str, int]]


def split_sizes(extent: Extent, parts: Mapping[str, Any]) -> list[Group]:
    """For each dimension the (label, size) of the dimensions that take its place.

    Args:
        parts: for a dimension to split the names of its parts; for a part its size.

    Raises TypeError and UsageError as ``Region.split`` tells.
    """
    names: dict[str, tuple[str, ...]] = {}
    sizes: dict[str, int] = {}
    for key, value in parts.items():
        if isinstance(value, (list, tuple)):
            check_dimension(extent, key)
            names[key] = tuple(check_label(name) for name in value)
            if not names[key]:
                raise UsageError(f"dimension {key!r} must be split into at least one part")
        elif isinstance(value, str):
            raise TypeError(f"give the parts of {key!r} as a tuple of names, not {value!r}")
        else:
            sizes[key] = as_int(value, f"the size of {key!r}")
            if sizes[key] < 1:
                raise UsageError(f"the size of {key!r} must be at least 1, not {sizes[key]}")
    made = {name for group in names.values() for name in group}
    for key in sizes:
        if key not in made:
            raise TypeError(f"{key!r} has a size but no dimension is split into it")
    return [
        _sized(label, size, names[label], sizes) if label in names else [(label, size)]
        for label, size in extent.items()
    ]


def _sized(label: str, size: int, names: tuple[str, ...], sizes: Mapping[str, int]) -> Group:
    known = prod(sizes[name] for name in names if name in sizes)
    unknown = [name for name in names if name not in sizes]
    if len(unknown) > 1:
        raise UsageError(
            f"give the sizes of all parts of {label!r} but one; "
            f"missing are those of {', '.join(map(repr, unknown))}"
        )
    if size % known or (not unknown and size != known):
        raise UsageError(f"{label!r} has size {size}, which does not split into parts of {known}")
    return [(name, sizes.get(name, size // known)) for name in names]

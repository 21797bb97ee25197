"""Indices given by a user, checked and made plain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

from slurmmesh.errors import UsageError
from slurmmesh.shape.extent import Extent, checked_index

Index = SupportsIndex | slice | range | list[int] | tuple[int, ...]


@dataclass(frozen=True)
class Pick:
    """What is taken of one dimension: one index, an even run of them, or any others."""

    label: str
    indices: int | range | tuple[int, ...]

    @property
    def places(self) -> Sequence[int]:
        """The indices taken, also where it is one."""
        return (self.indices,) if isinstance(self.indices, int) else self.indices

    @property
    def first(self) -> int:
        """The first index taken."""
        return self.places[0]

    @property
    def size(self) -> int:
        """How many indices are taken."""
        return len(self.places)


def select(extent: Extent, indices: Mapping[str, Any]) -> list[Pick]:
    """One pick for each dimension of ``extent``; a dimension not named is taken whole.

    Raises TypeError, IndexError and UsageError as ``Region.slice`` tells.
    """
    for label in indices:
        check_dimension(extent, label)
    return [
        Pick(label, _plain(label, size, indices[label]) if label in indices else range(size))
        for label, size in extent.items()
    ]


def check_dimension(extent: Extent, label: str) -> None:
    """TypeError if ``extent`` has no dimension of this name: the keyword does not exist."""
    if label not in extent.labels:
        has = f"the dimensions are {extent}" if extent else "this mesh has no dimensions"
        raise TypeError(f"no dimension {label!r}; {has}")


def _plain(label: str, size: int, index: Any) -> int | range | tuple[int, ...]:
    if isinstance(index, slice):
        if index.step == 0:
            raise UsageError(f"the step of a slice of {label!r} must not be 0")
        return _filled(label, range(size)[index])
    if isinstance(index, range):
        run = _filled(label, index)
        checked_index(run[0], label, size)
        checked_index(run[-1], label, size)
        return run
    if isinstance(index, (list, tuple)):
        numbers = tuple(checked_index(value, label, size) for value in index)
        if len(set(numbers)) != len(numbers):
            raise UsageError(f"an index of {label!r} occurs twice in {list(numbers)}")
        return _filled(label, numbers)
    if not hasattr(index, "__index__"):
        raise TypeError(f"{label!r} takes an int, slice, range or list of ints, not {index!r}")
    return checked_index(index, label, size)


def _filled(label: str, indices: Any) -> Any:
    if not indices:
        raise UsageError(f"nothing is left of dimension {label!r}: the slice is empty")
    return indices

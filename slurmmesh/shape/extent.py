"""Named dimensions and the places in them."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, SupportsIndex

from slurmmesh.errors import UsageError


@dataclass(frozen=True, init=False, repr=False)
class Extent(Mapping[str, int]):
    """Names and sizes of the dimensions of a mesh, outermost first. Elements are row-major.

    A mapping from label to size. An extent without dimensions has one element. Unlike two
    dicts, two extents with the same dimensions in another order are not equal.

    Raises:
        UsageError: a label twice, a label that is no identifier (dimensions are named by
            keyword), a size below 1, or not as many sizes as labels.
        TypeError: a label that is no text, or a size that is no integer.
    """

    labels: tuple[str, ...]
    sizes: tuple[int, ...]

    def __init__(self, labels: Sequence[str], sizes: Sequence[SupportsIndex]) -> None:
        if isinstance(labels, str):
            raise TypeError(f"labels must be a sequence of names, not the text {labels!r}")
        names = tuple(labels)
        numbers = tuple(as_int(size, "a size") for size in sizes)
        if len(names) != len(numbers):
            raise UsageError(f"{len(names)} labels but {len(numbers)} sizes: give one size each")
        for name in names:
            check_label(name)
        if len(set(names)) != len(names):
            raise UsageError(f"dimension names must differ, got {', '.join(names)}")
        for name, number in zip(names, numbers, strict=True):
            if number < 1:
                raise UsageError(f"dimension {name!r} must have a size of at least 1, not {number}")
        object.__setattr__(self, "labels", names)
        object.__setattr__(self, "sizes", numbers)

    @classmethod
    def of(cls, sizes: Mapping[str, SupportsIndex]) -> Extent:
        """The extent with these dimensions: ``Extent.of({"hosts": 4, "gpus": 8})``."""
        return cls(tuple(sizes), tuple(sizes.values()))

    @property
    def nelements(self) -> int:
        """How many elements there are: the product of the sizes."""
        return prod(self.sizes)

    @property
    def strides(self) -> tuple[int, ...]:
        """How far apart, in ranks, two neighbours along each dimension are."""
        strides = []
        stride = 1
        for size in reversed(self.sizes):
            strides.append(stride)
            stride *= size
        return tuple(reversed(strides))

    def point(self, rank: SupportsIndex) -> Point:
        """The place of a rank. Raises IndexError if there is no such rank."""
        return Point(rank, self)

    def points(self) -> Iterator[Point]:
        """All places, in the order of their ranks."""
        return (Point(rank, self) for rank in range(self.nelements))

    def rank_of(self, coordinates: Mapping[str, SupportsIndex]) -> int:
        """The rank at these coordinates, one for each dimension.

        Raises KeyError if one is missing or names no dimension, IndexError if one is out of range.
        """
        unknown = [name for name in coordinates if name not in self.labels]
        missing = [name for name in self.labels if name not in coordinates]
        if unknown or missing:
            what = f"no dimension {unknown[0]!r}" if unknown else f"no value for {missing[0]!r}"
            raise KeyError(f"{what}; the dimensions are {self}")
        rank = 0
        for label, size in zip(self.labels, self.sizes, strict=True):
            rank = rank * size + checked_index(coordinates[label], label, size)
        return rank

    def __getitem__(self, label: str) -> int:
        try:
            return self.sizes[self.labels.index(label)]
        except ValueError:
            raise KeyError(f"no dimension {label!r}; the dimensions are {self}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.labels)

    def __len__(self) -> int:
        return len(self.labels)

    def __str__(self) -> str:
        return str(dict(zip(self.labels, self.sizes, strict=True)))

    def __repr__(self) -> str:
        return f"Extent({self})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Extent, (self.labels, self.sizes)


@dataclass(frozen=True, init=False, repr=False)
class Point(Mapping[str, int]):
    """A place in an extent: ``point["gpus"]`` is its coordinate, ``point.rank`` its number.

    Prints as ``{'hosts': 0/4, 'gpus': 1/8}``.

    Raises:
        IndexError: the extent has no such rank.
    """

    rank: int
    extent: Extent

    def __init__(self, rank: SupportsIndex, extent: Extent) -> None:
        number = as_int(rank, "a rank")
        if not 0 <= number < extent.nelements:
            raise IndexError(f"rank {number} is not in {extent}: ranks are 0 to {_last(extent)}")
        object.__setattr__(self, "rank", number)
        object.__setattr__(self, "extent", extent)

    def size(self, label: str | None = None) -> int:
        """Size of a dimension, or of the whole extent. KeyError if there is no such dimension."""
        return self.extent.nelements if label is None else self.extent[label]

    def __getitem__(self, label: str) -> int:
        size = self.extent[label]
        stride = self.extent.strides[self.extent.labels.index(label)]
        return self.rank // stride % size

    def __iter__(self) -> Iterator[str]:
        return iter(self.extent)

    def __len__(self) -> int:
        return len(self.extent)

    def __repr__(self) -> str:
        return "{" + ", ".join(f"{k!r}: {self[k]}/{n}" for k, n in self.extent.items()) + "}"

    def __reduce__(self) -> tuple[Any, ...]:
        return Point, (self.rank, self.extent)


def as_int(value: Any, what: str) -> int:
    """``value`` as an int; TypeError for anything else. A bool is a mistake, not a number."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} must be an integer, not {value!r}")
    return operator.index(value)


def checked_index(value: Any, label: str, size: int) -> int:
    """``value`` as an index of a dimension; IndexError if out of range, negative ones too."""
    index = as_int(value, f"the index of {label!r}")
    if not 0 <= index < size:
        raise IndexError(f"{label}={index} is out of range: {label!r} goes from 0 to {size - 1}")
    return index


def check_label(label: Any) -> str:
    """``label`` if it can name a dimension, else TypeError or UsageError."""
    if not isinstance(label, str):
        raise TypeError(f"a dimension is named by text, not {label!r}")
    if not label.isidentifier():
        raise UsageError(f"{label!r} cannot name a dimension: use letters, digits and _")
    return label


def _last(extent: Extent) -> int:
    return extent.nelements - 1

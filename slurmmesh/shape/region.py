"""Which ranks of a mesh a slice of it covers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, SupportsIndex

from slurmmesh.errors import UsageError
from slurmmesh.shape.extent import Extent, as_int
from slurmmesh.shape.select import Index, select
from slurmmesh.shape.split import split_sizes


@dataclass(frozen=True, init=False, repr=False)
class Region:
    """An extent and the global rank at each of its places. An immutable value.

    ``Region(extent)`` is a whole mesh: ranks 0 to n-1. Slicing gives smaller regions that
    still name the ranks of that mesh. Ranks are kept as an offset and strides while they
    form a grid, so a slice of a mesh of any size costs the same; only what is no grid
    (``slice(hosts=[0, 3, 4])``) keeps a table. Equal regions cover equal ranks in equal places.
    """

    extent: Extent
    offset: int
    strides: tuple[int, ...]
    table: tuple[int, ...] | None

    def __init__(self, extent: Extent) -> None:
        self._set(extent, 0, extent.strides, None)

    @classmethod
    def of(cls, sizes: Mapping[str, SupportsIndex]) -> Region:
        """A whole mesh with these dimensions: ``Region.of({"hosts": 4, "gpus": 8})``."""
        return cls(Extent.of(sizes))

    @classmethod
    def from_ranks(cls, extent: Extent, ranks: Sequence[SupportsIndex]) -> Region:
        """The region with these global ranks, row-major.

        Raises UsageError if their number does not fit, one is negative or one occurs twice.
        """
        numbers = tuple(as_int(rank, "a rank") for rank in ranks)
        if len(numbers) != extent.nelements:
            raise UsageError(f"{extent} needs {extent.nelements} ranks, not {len(numbers)}")
        if min(numbers) < 0:
            raise UsageError(f"rank {min(numbers)} is negative")
        if len(set(numbers)) != len(numbers):
            raise UsageError("a rank occurs twice in a region")
        return _from_table(extent, numbers)

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the dimensions, outermost first."""
        return self.extent.labels

    @property
    def ranks(self) -> tuple[int, ...]:
        """The global ranks covered, row-major. Made on demand: the size of the region."""
        return tuple(self)

    def slice(self, /, **indices: Index) -> Region:
        """The part at these indices.

        Args:
            indices: for each dimension to cut an int (which drops the dimension), a slice
                (bounds may be negative or too large, steps anything but 0), a range, or a
                list of indices, whose order is kept.

        Raises:
            TypeError: no such dimension, or an index that is none of these.
            IndexError: an int, or one in a range or list, that is negative or too large.
            UsageError: nothing is left, or an index occurs twice in a list.
        """
        chosen = select(self.extent, indices)
        kept = [pick for pick in chosen if not isinstance(pick.indices, int)]
        extent = Extent([pick.label for pick in kept], [pick.size for pick in kept])
        if self.table is None and all(not isinstance(pick.indices, tuple) for pick in kept):
            offset = self.offset
            strides: list[int] = []
            for pick, stride in zip(chosen, self.strides, strict=True):
                offset += pick.first * stride
                if isinstance(pick.indices, range):
                    strides.append(pick.indices.step * stride)
            return _grid(extent, offset, tuple(strides))
        places = product(*(pick.places for pick in chosen))
        return _from_table(extent, tuple(self._rank_at(place) for place in places))

    def split(self, /, **parts: Sequence[str] | SupportsIndex) -> Region:
        """The same ranks with some dimensions each split into several.

        ``split(hosts=("dp", "pp"), pp=2)`` splits ``hosts``; the size of at most one part of
        a dimension may be left out.

        Raises:
            TypeError: no such dimension, or a part that is no name or size.
            UsageError: sizes that do not multiply to the dimension's, or a name twice.
        """
        groups = split_sizes(self.extent, parts)
        labels = [label for group in groups for label, _ in group]
        sizes = [size for group in groups for _, size in group]
        extent = Extent(labels, sizes)
        if self.table is not None:
            return _from_table(extent, self.table)
        strides: list[int] = []
        for group, stride in zip(groups, self.strides, strict=True):
            inner = stride
            steps = []
            for _, size in reversed(group):
                steps.append(inner)
                inner *= size
            strides += reversed(steps)
        return _grid(extent, self.offset, tuple(strides))

    def flatten(self, label: str) -> Region:
        """The same ranks in the same order along one dimension named ``label``."""
        extent = Extent((label,), (self.extent.nelements,))
        if self.table is None and _is_row_major(self.extent.sizes, self.strides):
            step = next((s for s in reversed(self.strides) if s), 1)
            return _grid(extent, self.offset, (step,))
        return _from_table(extent, self.ranks)

    def rename(self, /, **names: str) -> Region:
        """The same ranks with some dimensions renamed: ``rename(hosts="dp")``.

        Raises TypeError if there is no such dimension, UsageError if a name occurs twice.
        """
        for label, name in names.items():
            if not isinstance(name, str):
                raise TypeError(f"the new name of {label!r} must be text, not {name!r}")
        return self.split(**{label: (name,) for label, name in names.items()})

    def global_rank(self, rank: SupportsIndex) -> int:
        """The global rank at place ``rank`` of this region. IndexError if there is none."""
        point = self.extent.point(rank)
        if self.table is not None:
            return self.table[point.rank]
        return self._rank_at(tuple(point[label] for label in self.labels))

    def local_rank(self, rank: int) -> int:
        """The place of a global rank in this region. IndexError if it is not covered."""
        place = self._place_of(rank)
        if place is None:
            raise IndexError(f"rank {rank} is not in {self}")
        return place

    def pack(self) -> tuple[Any, ...]:
        """The region as a tuple of plain values, which can be hashed; see :meth:`unpack`."""
        extent = self.extent
        return extent.labels, extent.sizes, self.offset, self.strides, self.table

    @staticmethod
    def unpack(packed: tuple[Any, ...]) -> Region:
        """The region of which :meth:`pack` made this."""
        labels, sizes, offset, strides, table = packed
        return _make(Extent(labels, sizes), offset, strides, table)

    def __contains__(self, rank: object) -> bool:
        return isinstance(rank, int) and self._place_of(rank) is not None

    def __len__(self) -> int:
        return self.extent.nelements

    def __iter__(self) -> Iterator[int]:
        if self.table is not None:
            return iter(self.table)
        spans = [
            range(0, size * stride, stride) if stride else range(1)
            for size, stride in zip(self.extent.sizes, self.strides, strict=True)
        ]
        if not spans:
            return iter((self.offset,))
        *outer, inner = spans
        bases = (self.offset + sum(steps) for steps in product(*outer))
        return (base + step for base in bases for step in inner)

    def __repr__(self) -> str:
        if self == Region(self.extent):
            return f"Region({self.extent})"
        if len(self) <= 8:
            return f"Region({self.extent}, ranks {', '.join(map(str, self))})"
        return f"Region({self.extent}, {len(self)} ranks from {next(iter(self))})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _make, (self.extent, self.offset, self.strides, self.table)

    def _set(
        self, extent: Extent, offset: int, strides: tuple[int, ...], table: tuple[int, ...] | None
    ) -> None:
        # One form for each region, so that equality of fields is equality of ranks: the
        # stride of a dimension of size 1 never counts.
        steps = tuple(s if n > 1 else 0 for n, s in zip(extent.sizes, strides, strict=True))
        for name, value in (
            ("extent", extent),
            ("offset", offset),
            ("strides", steps),
            ("table", table),
        ):
            object.__setattr__(self, name, value)

    def _rank_at(self, place: Sequence[int]) -> int:
        if self.table is not None:
            steps = self.extent.strides
            return self.table[sum(i * s for i, s in zip(place, steps, strict=True))]
        return self.offset + sum(i * s for i, s in zip(place, self.strides, strict=True))

    def _place_of(self, rank: int) -> int | None:
        if self.table is not None:
            return self.table.index(rank) if rank in self.table else None
        rest = rank - self.offset
        place = 0
        # Grids are nested (see _is_nested): the widest stride decides first. A negative
        # stride counts from its far end.
        for size, stride in zip(self.extent.sizes, self.strides, strict=True):
            if stride < 0:
                rest -= (size - 1) * stride
        dims = zip(self.extent.sizes, self.strides, self.extent.strides, strict=True)
        for size, stride, weight in sorted(dims, key=lambda dim: -abs(dim[1])):
            if stride == 0:
                continue
            index, rest = divmod(rest, abs(stride))
            if not 0 <= index < size:
                return None
            place += weight * (index if stride > 0 else size - 1 - index)
        return place if rest == 0 else None


def _make(
    extent: Extent, offset: int, strides: tuple[int, ...], table: tuple[int, ...] | None
) -> Region:
    region = Region.__new__(Region)
    region._set(extent, offset, strides, table)
    return region


def _grid(extent: Extent, offset: int, strides: tuple[int, ...]) -> Region:
    return _make(extent, offset, strides, None)


def _from_table(extent: Extent, ranks: tuple[int, ...]) -> Region:
    """The region of these ranks in its one form: a grid if they are one."""
    weights = extent.strides
    steps = tuple(
        ranks[weight] - ranks[0] if size > 1 else 0
        for size, weight in zip(extent.sizes, weights, strict=True)
    )
    if _is_nested(extent.sizes, steps):
        grid = _grid(extent, ranks[0], steps)
        if all(mine == theirs for mine, theirs in zip(grid, ranks, strict=True)):
            return grid
    return _make(extent, 0, weights, ranks)


def _is_nested(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether each stride steps over all that the shorter ones reach."""
    reach = 0
    for stride, size in sorted((abs(s), n) for n, s in zip(sizes, strides, strict=True) if n > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _is_row_major(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether the places in order are evenly spaced, so that one stride tells them all."""
    dims = [(n, s) for n, s in zip(sizes, strides, strict=True) if n > 1]
    return all(outer == size * inner for (_, outer), (size, inner) in pairwise(dims))

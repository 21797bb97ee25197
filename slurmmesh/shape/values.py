"""A value for each place of an extent: what a call on a mesh returns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Generic, SupportsIndex, TypeVar

from slurmmesh.errors import UsageError
from slurmmesh.shape.extent import Extent, Point
from slurmmesh.shape.region import Region
from slurmmesh.shape.shaped import Shaped

T = TypeVar("T")


class ValueMesh(Shaped, Generic[T]):
    """Values in the shape of a mesh. Iterating gives ``(point, value)``, row-major.

    Points count from 0 in this mesh, also after slicing. A value itself: immutable apart
    from what it holds, picklable, equal to another of equal shape and values.

    Args:
        shape: an extent, or a region, of which only the extent counts.
        values: one for each element, row-major.

    Raises:
        UsageError: the number of values does not fit the shape.
    """

    __slots__ = ("_region", "_values")

    def __init__(self, shape: Extent | Region, values: Iterable[T]) -> None:
        extent = shape if isinstance(shape, Extent) else shape.extent
        self._region = Region(extent)
        self._values = tuple(values)
        if len(self._values) != len(self._region):
            raise UsageError(f"{extent} needs {len(self._region)} values, not {len(self._values)}")

    @property
    def region(self) -> Region:
        """The shape of this mesh; its ranks are 0 to n-1."""
        return self._region

    def item(self, /, **coordinates: SupportsIndex) -> T:
        """The value at these coordinates, one for each dimension.

        Raises KeyError if one is missing or names no dimension, IndexError if out of range.
        """
        return self._values[self.extent.rank_of(coordinates)]

    def get(self, rank: SupportsIndex) -> T:
        """The value at this rank of the mesh. IndexError if there is none."""
        return self._values[self.extent.point(rank).rank]

    def items(self) -> Iterator[tuple[Point, T]]:
        """Each place with its value, row-major."""
        return zip(self.extent.points(), self._values, strict=True)

    def values(self) -> list[T]:
        """The values, row-major."""
        return list(self._values)

    def _with_region(self, region: Region) -> ValueMesh[T]:
        return ValueMesh(region.extent, [self._values[rank] for rank in region])

    def __iter__(self) -> Iterator[tuple[Point, T]]:
        return self.items()

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, ValueMesh):
            return NotImplemented
        return self.extent == other.extent and self._values == other._values

    __hash__ = None  # type: ignore[assignment]  # values may be unhashable

    def __repr__(self) -> str:
        shown = ", ".join(f"{point}: {value!r}" for point, value in list(self)[:8])
        more = f", and {len(self) - 8} more" if len(self) > 8 else ""
        return f"ValueMesh({shown}{more})"

    def __reduce__(self) -> tuple[Any, ...]:
        return ValueMesh, (self.extent, self._values)

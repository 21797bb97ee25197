"""What every mesh can do: tell its shape and be cut and re-labelled."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import prod
from typing import SupportsIndex, TypeVar

from slurmmesh.shape.extent import Extent
from slurmmesh.shape.region import Region
from slurmmesh.shape.select import Index

S = TypeVar("S", bound="Shaped")


class Shaped(ABC):
    """Base of meshes. A mesh tells its region and makes itself anew for another one."""

    @property
    @abstractmethod
    def region(self) -> Region:
        """The shape of this mesh and the ranks it covers."""

    @abstractmethod
    def _with_region(self: S, region: Region) -> S:
        """This mesh over ``region``, which covers some or all of the ranks of ``self.region``."""

    @property
    def extent(self) -> Extent:
        """Names and sizes of the dimensions."""
        return self.region.extent

    @property
    def labels(self) -> tuple[str, ...]:
        """Names of the dimensions, outermost first."""
        return self.extent.labels

    @property
    def sizes(self) -> dict[str, int]:
        """Size of each dimension by its name."""
        return dict(self.extent)

    def size(self, dim: str | Sequence[str] | None = None) -> int:
        """Number of elements along ``dim``, along several dimensions together, or of all.

        Raises KeyError if there is no such dimension.
        """
        if dim is None:
            return self.extent.nelements
        if isinstance(dim, str):
            return self.extent[dim]
        return prod(self.extent[name] for name in dim)

    def slice(self: S, /, **indices: Index) -> S:
        """The part at these indices; see ``Region.slice`` for what an index may be."""
        return self._with_region(self.region.slice(**indices))

    def split(self: S, /, **parts: Sequence[str] | SupportsIndex) -> S:
        """The same elements with dimensions split: ``split(hosts=("dp", "pp"), pp=2)``."""
        return self._with_region(self.region.split(**parts))

    def flatten(self: S, label: str) -> S:
        """The same elements in the same order along one dimension."""
        return self._with_region(self.region.flatten(label))

    def rename(self: S, /, **names: str) -> S:
        """The same elements with dimensions renamed: ``rename(hosts="dp")``."""
        return self._with_region(self.region.rename(**names))

"""Shapes of meshes and values over them: pure values, no I/O."""

from slurmmesh.shape.extent import Extent, Point
from slurmmesh.shape.region import Region
from slurmmesh.shape.select import Index
from slurmmesh.shape.shaped import Shaped
from slurmmesh.shape.values import ValueMesh

__all__ = ["Extent", "Index", "Point", "Region", "Shaped", "ValueMesh"]

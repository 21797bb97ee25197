"""Device memory and collectives over the C bridge; the same over ROCm and over CUDA.

Nothing of a GPU is touched by an import: the libraries are found when the first name is used.
"""

from __future__ import annotations

from slurmmesh._doors import front_door

_HOMES: dict[str, tuple[str, ...]] = {}

__all__: list[str] = []

__getattr__, __dir__ = front_door(__name__, _HOMES)

"""slurmmesh: a Slurm allocation as one Python program."""

from slurmmesh._version import __version__

__all__ = ["__version__"]

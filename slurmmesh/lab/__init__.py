"""A real Slurm of N nodes on one machine, for users without a cluster and for tests.

>>> from slurmmesh.lab import Lab
>>> with Lab(nodes=4) as lab:                                        # doctest: +SKIP
...     lab.run("srun", "-N4", "hostname")
...     lab.kill_node("node2")
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from slurmmesh.lab.core import Lab

__all__ = ["Lab"]


def __getattr__(name: str) -> Any:
    # Not before it is asked for: the command's first lines must run before anything is imported.
    if name == "Lab":
        from slurmmesh.lab.core import Lab

        return Lab
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

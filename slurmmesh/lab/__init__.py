"""A real Slurm of N nodes on one machine, for users without a cluster and for tests.

>>> from slurmmesh.lab import Lab
>>> with Lab(nodes=4) as lab:                                        # doctest: +SKIP
...     lab.run("srun", "-N4", "hostname")
...     lab.kill_node("node2")
"""

from slurmmesh.lab.core import Lab

__all__ = ["Lab"]

"""The C bridge as Python modules, made from ``cbridge/`` by ``build.py`` at installation.

``_bridge`` finds its libraries at run time. ``_bridge_linked``, made where ROCm is, is the same
and linked against it. Neither is there where no C compiler was; ``slurmmesh.gpu.library`` loads
them and says so.
"""

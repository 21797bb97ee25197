"""Where the bridge to HIP, RCCL and their CUDA twins will be built from ``cbridge/``.

Nothing is built here yet: this version runs on CPUs. See ``cbridge/README.md``.
"""

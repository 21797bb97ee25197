#!/usr/bin/env bash
# The tests marked requires_cuda on this machine's NVIDIA GPU: on_cuda.sh [PYTEST ARGUMENTS].
#
# They are the emulator's own tests, against the real cuMem* and NCCL. One GPU is enough; nothing of
# its settings is changed. A test that would skip fails.
#   PYTHON=python3   a Python that has what slurmmesh's tests need, and torch for CUDA if possible;
#                    without it .venv is used, and made if it is not there. With it nothing is
#                    installed and no network is needed: only the bridge is built, in place.
set -eu
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

if [ -z "${PYTHON:-}" ]; then
    make venv
    PYTHON=.venv/bin/python
else
    SLURMMESH_GPU_PLATFORM=cuda "$PYTHON" setup.py --quiet build_ext --inplace
fi

# NCCL's own talk is wanted where something fails; one machine needs no network.
export SLURMMESH_GPU_PLATFORM=cuda NCCL_SOCKET_IFNAME="${NCCL_SOCKET_IFNAME:-lo}" NCCL_DEBUG=WARN
# Where neither the system nor Python has NCCL, the copy fetched for tests, if it is there.
fetched=$(echo "$PWD"/.cache/gpu-libraries/pypi/nvidia/*/lib | tr ' ' ':')
export LD_LIBRARY_PATH="${LD_LIBRARY_PATH:+$LD_LIBRARY_PATH:}$fetched"

if ! command -v nvidia-smi >/dev/null; then
    echo "There is no NVIDIA driver here (no nvidia-smi): these tests need a machine with a GPU." >&2
    exit 1
fi
nvidia-smi --query-gpu=index,name,memory.total,driver_version --format=csv
"$PYTHON" - <<'PROGRAM'
from slurmmesh.gpu import devices
from slurmmesh.gpu.library import load

library = load()
if library.emulated:
    raise SystemExit(f"this is the emulator, not a GPU: {library.path('gpu')}")
for kind in ("gpu", "runtime", "ccl"):
    print(f"{kind:8} {library.path(kind) or 'none'}")
for device in devices():
    print(device)
print("missing:", *(row.cuda for row in library.symbols() if row.cuda and not row.present))
PROGRAM
exec "$PYTHON" -m pytest -m requires_cuda --require-cuda --durations=10 tests/gpu "$@"

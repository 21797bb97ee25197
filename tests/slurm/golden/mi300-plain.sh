#!/bin/bash
#SBATCH --job-name=train.py
#SBATCH --output=/shared/jobs/%j.out
#SBATCH --no-requeue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
# A lost node shrinks the job.
#SBATCH --no-kill

# Made by slurmmesh VERSION from the template mi300.

fail() {
    trap - EXIT
    echo "slurmmesh: $1 (on $SLURMD_NODENAME)" >&2
    exit 6
}

sm_job_id="$SLURM_JOB_ID"
[ -n "$SLURM_ARRAY_TASK_ID" ] && sm_job_id="${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID"
sm_attempt="${SLURM_RESTART_COUNT:-0}"
sm_job=/shared/jobs/"$sm_job_id"
sm_job_folder="$sm_job/attempt-$sm_attempt"
# A cluster set up anew counts jobs from the beginning: what an earlier job of this id left is kept.
sm_earlier="$sm_job_folder"
[ "$sm_attempt" -eq 0 ] && sm_earlier="$sm_job"
if [ -e "$sm_job_folder" ] || [ -e "$sm_earlier/job.json" ]; then
    mv -- "$sm_earlier" "$sm_earlier.before-$(date +%s)" 2>/dev/null
fi
(umask 077 && mkdir -p -- "$sm_job_folder") ||
    fail "cannot make the job folder $sm_job_folder: it must be on a file system that all nodes see"
chmod 700 -- "$sm_job" "$sm_job_folder" || fail "the job folder $sm_job belongs to somebody else"
echo "slurmmesh: the job's output goes to $sm_job_folder/controller.log"
exec </dev/null
exec 1>>"$sm_job_folder/controller.log"
exec 2>&1

cd -- /shared/work || fail "the working folder of the job is not on this node"

# The program is not to be skipped in silence.
trap 'fail "--setup or the template ended the script before the program"' EXIT

# What the site needs before the program can run.

# Settings for the libraries below; those that are set already stay as they are.
# Slurm's mask of GPUs is ROCR_VISIBLE_DEVICES. Any other mask would be counted within it, and hide
# GPUs; --env sets one all the same. ("ROCm environment variables", GPU isolation; all versions)
unset HIP_VISIBLE_DEVICES CUDA_VISIBLE_DEVICES GPU_DEVICE_ORDINAL

# Kernel arguments lie in device memory, which starts a kernel 2-3 microseconds sooner.
# ("HIP environment variables"; ROCm 6 and 7; newer versions do so by themselves)
export HIP_FORCE_DEV_KERNARG="${HIP_FORCE_DEV_KERNARG-1}"

# Two hardware queues for the streams of a process, one of them for communication, instead of four.
# ("Environment variables reference" of Primus; ROCm 6 and 7)
export GPU_MAX_HW_QUEUES="${GPU_MAX_HW_QUEUES-2}"
export TORCH_NCCL_HIGH_PRIORITY="${TORCH_NCCL_HIGH_PRIORITY-1}"

# Queues keep their scratch memory. RCCL is slow without this, or refuses to start, unless both HIP
# (6.4.3) and the GPU's firmware (177) are new enough; then 0 saves device memory.
# ("ROCr environment variables", and RCCL's own check; ROCm 6 and 7)
export HSA_NO_SCRATCH_RECLAIM="${HSA_NO_SCRATCH_RECLAIM-1}"

# RCCL tells of what is wrong, and not only of what is fatal.
# ("RCCL environment variables"; all versions)
export NCCL_DEBUG="${NCCL_DEBUG-WARN}"

# No MSCCL, which keeps one state for all communicators of a process: recovery makes new ones.
# ("Environment variables reference" of Primus; ROCm 6 to 7.2. It is gone from RCCL since 7.13)
export RCCL_MSCCL_ENABLE="${RCCL_MSCCL_ENABLE-0}"

# Each host gives these a private folder on its node's own disk, and removes it at its end. MIOpen's
# databases break on shared file systems, and in a /tmp that users share.
# ("Kernel cache", "Using the find database" and issue 1878 of MIOpen; all versions)
export SLURMMESH_NODE_FOLDERS="${SLURMMESH_NODE_FOLDERS-MIOPEN_USER_DB_PATH MIOPEN_CUSTOM_CACHE_DIR}"

# The CPUs of a host, shared among one process for each GPU. They are not bound one by one: RCCL
# then finds the CPUs beside its GPU by itself.
# ("RCCL usage tips", Ignoring CPU affinity; all versions)
export OMP_NUM_THREADS="${OMP_NUM_THREADS-$((SLURM_CPUS_ON_NODE > 1 ? SLURM_CPUS_ON_NODE / 1 : 1))}"

export SLURMMESH_JOB_FOLDER="$sm_job_folder"
export SLURMMESH_JOB_ID="$sm_job_id"
export SLURMMESH_CLUSTER=slurm
export SLURMMESH_NODES=1
export SLURMMESH_SPARES=0
export SLURMMESH_GPUS_PER_NODE=0

sm_python=/opt/venv/bin/python
[ -x "$sm_python" ] || fail "the Python of the submit, $sm_python, is not on this node"
# Like "python -m slurmmesh.hosts.program", but no file in this folder hides a module of Python's.
sm_controller='import os, sys; sys.path[:] = [p for p in sys.path if p] + [os.getcwd()] * ("" in sys.path); from slurmmesh.hosts.program import main; main()'
# The controller takes this shell's place, so that scancel and the time limit reach it as SIGTERM.
exec "$sm_python" -u -c "$sm_controller" train.py

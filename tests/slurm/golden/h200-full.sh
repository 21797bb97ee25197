#!/bin/bash
#SBATCH --job-name='my "run" #1'
#SBATCH --output=/shared/jobs/%j.out
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --nodes=17
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=96
#SBATCH --gpus-per-node=mi300x:8
#SBATCH --time=2-12
#SBATCH --partition=gpu
#SBATCH --account=me
#SBATCH --constraint='zen4&mi300'
#SBATCH --comment='no # comment'
#SBATCH --gpu-bind=none
#SBATCH -H
# A lost node shrinks the job.
#SBATCH --no-kill

# Made by slurmmesh VERSION from the template h200.

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

cd -- $'/shared/a b\'"$x\nö' || fail "the working folder of the job is not on this node"

# The program is not to be skipped in silence.
trap 'fail "--setup or the template ended the script before the program"' EXIT

# What the site needs before the program can run.
module load rocm
[ $? -eq 0 ] || fail '--setup module load rocm: failed'

# Settings for the libraries below; those that are set already stay as they are.
# GPUs are counted as Slurm and nvidia-smi count them, not the fastest first.
# ("CUDA Environment Variables"; all versions)
export CUDA_DEVICE_ORDER="${CUDA_DEVICE_ORDER-PCI_BUS_ID}"

# NCCL tells of what is wrong, and not only of what is fatal.
# ("Environment Variables" of NCCL; all versions)
export NCCL_DEBUG="${NCCL_DEBUG-WARN}"

# Each host gives these a private folder on its node's own disk, and removes it at its end: kernels
# that are compiled at run time are not locked and read on a shared file system.
# ("CUDA Environment Variables"; all versions)
export SLURMMESH_NODE_FOLDERS="${SLURMMESH_NODE_FOLDERS-CUDA_CACHE_PATH}"

# The CPUs of a host, shared among one process for each GPU.
# (OpenMP 5, Environment Variables)
export OMP_NUM_THREADS="${OMP_NUM_THREADS-12}"
export NCCL_DEBUG=$'IN\'FO\n$x'

export SLURMMESH_JOB_FOLDER="$sm_job_folder"
export SLURMMESH_JOB_ID="$sm_job_id"
export SLURMMESH_CLUSTER=slurm
export SLURMMESH_NODES=16
export SLURMMESH_SPARES=1
export SLURMMESH_GPUS_PER_NODE=8
export SLURMMESH_INTERFACE=10.8.0.0/16

sm_python=/opt/venv/bin/python
[ -x "$sm_python" ] || fail "the Python of the submit, $sm_python, is not on this node"
# Like "python -m slurmmesh.hosts.program", but no file in this folder hides a module of Python's.
sm_controller='import os, sys; sys.path[:] = [p for p in sys.path if p] + [os.getcwd()] * ("" in sys.path); from slurmmesh.hosts.program import main; main()'
# The controller takes this shell's place, so that scancel and the time limit reach it as SIGTERM.
exec "$sm_python" -u -c "$sm_controller" -m package.train --lr 3e-4 'two words' $'it\'s\n#SBATCH --nodes=99\n$(id)'

#!/bin/bash
#SBATCH --job-name=train.py
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --output=/shared/jobs/%j.out
# A lost node shrinks the job; the job is never started again.
#SBATCH --no-kill
#SBATCH --no-requeue

# Made by slurmmesh VERSION. Hosts: 1, spares: 0.

fail() {
    echo "slurmmesh: $1 (on $SLURMD_NODENAME)" >&2
    exit 6
}

job_folder=/shared/jobs/"$SLURM_JOB_ID"
# A cluster set up anew counts jobs from the beginning: what an earlier job of this id left is kept.
if [ -d "$job_folder" ]; then
    mv -- "$job_folder" "$job_folder.before-$(date +%s)" 2>/dev/null
fi
mkdir -p -m 700 -- "$job_folder" ||
    fail "cannot make the job folder $job_folder: it must be on a file system that all nodes see"
chmod 700 -- "$job_folder" || fail "the job folder $job_folder belongs to somebody else"
echo "slurmmesh: the job's output goes to $job_folder/controller.log"
exec </dev/null >>"$job_folder/controller.log" 2>&1

cd -- /shared/work || fail "the folder of the submit is not on this node"
python=/opt/venv/bin/python
[ -x "$python" ] || fail "the Python of the submit, $python, is not on this node"

export SLURMMESH_JOB_FOLDER="$job_folder"
export SLURMMESH_JOB_ID="$SLURM_JOB_ID"
export SLURMMESH_CLUSTER=slurm
export SLURMMESH_NODES=1
export SLURMMESH_SPARES=0
export SLURMMESH_GPUS_PER_NODE=0

# Like "python -m slurmmesh.hosts.program", but no file in this folder hides a module of Python's.
controller='import os, sys; sys.path[:] = [p for p in sys.path if p] + [os.getcwd()] * ("" in sys.path); from slurmmesh.hosts.program import main; main()'
# The controller takes this shell's place, so that scancel and the time limit reach it as SIGTERM.
exec "$python" -u -c "$controller" train.py

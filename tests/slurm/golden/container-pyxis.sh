#!/bin/bash
#SBATCH --job-name=train.py
#SBATCH --output=/shared/jobs/%j.out
#SBATCH --no-requeue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
# A lost node shrinks the job.
#SBATCH --no-kill

# Made by slurmmesh VERSION from the template default.

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

export SLURMMESH_JOB_FOLDER="$sm_job_folder"
export SLURMMESH_JOB_ID="$sm_job_id"
export SLURMMESH_CLUSTER=slurm
export SLURMMESH_NODES=2
export SLURMMESH_SPARES=0
export SLURMMESH_GPUS_PER_NODE=0

sm_python=/opt/venv/bin/python
[ -x "$sm_python" ] || fail "the Python of the submit, $sm_python, is not on this node"
# srun is outside of the image, the program inside: the launcher starts the controller there, and
# the steps that it asks for. It passes signals on, and ends as the controller does. What --env
# gives is for the image, and for nobody's eyes: it stands in no command line.
sm_launcher='import os, sys; sys.path[:] = [p for p in sys.path if p] + [os.getcwd()] * ("" in sys.path); from slurmmesh.slurm.container.launcher import main; main()'
exec "$sm_python" -u -c "$sm_launcher" train.py --lr 3e-4 <<'sm_container'
{"runtime": "pyxis", "image": "nvcr.io#nvidia/pytorch:24.01", "mounts": ["/shared/jobs", "/shared/work"], "env": {"NCCL_DEBUG": "it's $HOME", "LD_LIBRARY_PATH": "/opt/lib"}}
sm_container

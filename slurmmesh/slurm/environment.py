"""What of an environment a Slurm command may see.

Slurm's commands take options from the environment, and a job's environment is full of them: a
submit from inside a job would inherit its binding and memory, a user's ``SQUEUE_FORMAT`` would
change what is to be parsed, ``SBATCH_PARTITION`` beats what stands in the script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmmesh.config import OF_A_JOB

# How to reach the cluster and who one is: not an option of a job.
_ACCESS = frozenset({"SLURM_CONF", "SLURM_JWT"})
_SLURM = ("SLURM_", "SLURMD_", "SBATCH_", "SALLOC_", "SRUN_", "PMI_", "PMI2_", "PMIX_")
_CLIENT_OPTIONS = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SSTAT_", "SPRIO_", "SSHARE_")
# Set by Slurm for the devices of the job one is in; wrong in any other job.
_DEVICE_MASKS = frozenset(
    {
        "ROCR_VISIBLE_DEVICES",
        "HIP_VISIBLE_DEVICES",
        "CUDA_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "ZE_AFFINITY_MASK",
    }
)
# Of the surrounding slurmmesh job and its host.
_OWN_JOB = OF_A_JOB | {"SUBMITIT_EXECUTOR", "SUBMITIT_FOLDER"}
# What tells a step which allocation it belongs to and what that is like. Everything else of
# Slurm's is an option of some step: of the batch step (its binding, its tasks) or of the user's.
_ALLOCATION = (
    "SLURM_JOB_",
    "SLURM_JOBID",
    "SLURM_ARRAY_",
    "SLURM_HET_",
    "SLURM_CLUSTER_NAME",
    "SLURM_WORKING_CLUSTER",
    "SLURM_SUBMIT_",
    "SLURM_RESTART_COUNT",
    "SLURM_NODE_ALIASES",
)
# srun reads these of the above as options.
_STEP_OPTIONS = frozenset({"SLURM_JOB_NAME", "SLURM_JOB_NUM_NODES"})


def for_client(environ: Mapping[str, str]) -> dict[str, str]:
    """For squeue, scontrol, scancel, sinfo: nothing that changes what they show."""
    return _without(environ, (*_SLURM, *_CLIENT_OPTIONS))


def for_submit(environ: Mapping[str, str]) -> dict[str, str]:
    """For sbatch, and so for the new job: nothing of a job one may be in, nor of its shell.

    The masks of visible devices go only if they come from a surrounding job.
    """
    clean = _without(environ, _SLURM)
    for name in _OWN_JOB | (_DEVICE_MASKS if "SLURM_JOB_ID" in environ else frozenset()):
        clean.pop(name, None)
    return clean


def for_step(environ: Mapping[str, str]) -> dict[str, str]:
    """For srun inside the allocation: the allocation, and no options but those in its argv."""
    clean = _without(environ, _SLURM)
    clean.update(
        (name, value)
        for name, value in environ.items()
        if name.startswith(_ALLOCATION) and name not in _STEP_OPTIONS
    )
    return clean


def ignored_sbatch_options(environ: Iterable[str]) -> list[str]:
    """The SBATCH_* variables of the user's shell, which ``for_submit`` leaves out."""
    return sorted(name for name in environ if name.startswith("SBATCH_"))


def _without(environ: Mapping[str, str], prefixes: tuple[str, ...]) -> dict[str, str]:
    return {k: v for k, v in environ.items() if k in _ACCESS or not k.startswith(prefixes)}

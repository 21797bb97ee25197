"""What of an environment a Slurm command may see.

Slurm's commands take options from the environment, and a job's environment is full of them: a
submit from inside a job would inherit its binding and memory, a user's ``SQUEUE_FORMAT`` would
change what is to be parsed, ``SBATCH_PARTITION`` beats what stands in the script.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from slurmmesh.config import NODE_FOLDER, OF_A_JOB

# How to reach the cluster and who one is: not an option of a job.
_ACCESS = frozenset({"SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_JWT", "SLURM_SACK_SOCKET"})
_SLURM = (
    *("SLURM_", "SLURMD_", "SLURMSTEPD_", "_SLURM_", "SPANK_"),
    *("SBATCH_", "SALLOC_", "SRUN_", "PMI_", "PMI2_", "PMIX_"),
)
_CLIENT_OPTIONS = (
    *("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SCONTROL_", "SSTAT_", "SPRIO_", "SSHARE_"),
)
# The commands then print moments as seconds since 1970, which no change of the clock doubles.
_CLIENT_SETTINGS = {"SLURM_TIME_FORMAT": "%s"}
# Set by Slurm for the devices and the network of the job one is in; wrong in any other job.
_DEVICES = (
    *("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"),
    *("GPU_DEVICE_ORDINAL", "ZE_AFFINITY_MASK", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"),
    *("SLINGSHOT_DEVICES", "SLINGSHOT_SVC_IDS", "SLINGSHOT_TCS", "SLINGSHOT_VNIS"),
)
# Set for the ranks of a job, by us, torchrun or mpirun.
_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "MASTER_ADDR", "MASTER_PORT"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("TORCHELASTIC_", "OMPI_COMM_WORLD_", "MPI_LOCAL"),
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
    """For squeue, scontrol, scancel, sinfo, sacct: nothing that changes what they show."""
    return {**_without(environ, (*_SLURM, *_CLIENT_OPTIONS)), **_CLIENT_SETTINGS}


def for_submit(environ: Mapping[str, str]) -> dict[str, str]:
    """For sbatch, and so for the new job: nothing of a job one may be in, nor of its shell.

    What users set too, such as masks of visible devices and MASTER_PORT, goes only if it comes
    from a surrounding job.
    """
    in_slurm = "SLURM_JOB_ID" in environ
    in_job = in_slurm or "SLURMMESH_JOB_FOLDER" in environ
    clean = _without(environ, _SLURM + _DEVICES * in_slurm + _RANKS * in_job)
    for name in _OWN_JOB:
        clean.pop(name, None)
    if home := environ.get(NODE_FOLDER):
        clean = {k: v for k, v in clean.items() if not v.startswith(f"{home}/")}
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

"""What Slurm's commands get to see of an environment."""

from __future__ import annotations

from slurmmesh.slurm import environment

INSIDE_A_JOB = {
    "PATH": "/bin",
    "HOME": "/home/me",
    "SLURM_CONF": "/etc/slurm.conf",
    "SLURM_JWT": "token",
    "SLURM_SACK_SOCKET": "/run/sack",
    "SLURM_CONF_SERVER": "head",
    "SLURM_JOB_ID": "12",
    "SLURM_JOB_NODELIST": "n[1-2]",
    "SLURM_JOB_CPUS_PER_NODE": "8(x2)",
    "SLURM_JOB_NAME": "outer",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_ARRAY_JOB_ID": "11",
    "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
    "SLURM_CPUS_PER_TASK": "4",
    "SLURM_MEM_PER_CPU": "1024",
    "SLURM_NTASKS": "2",
    "SLURM_STEP_ID": "0",
    "SLURM_EXPORT_ENV": "NONE",
    "SLURMD_NODENAME": "n1",
    "SBATCH_ACCOUNT": "other",
    "SBATCH_PARTITION": "debug",
    "SRUN_DEBUG": "3",
    "SQUEUE_FORMAT": "%j",
    "SINFO_FORMAT": "%P",
    "PMI_RANK": "0",
    "PMIX_RANK": "0",
    "ROCR_VISIBLE_DEVICES": "0,1",
    "_SLURM_SPANK_OPTION_x": "1",
    "SLINGSHOT_VNIS": "7",
    "RANK": "3",
    "MASTER_ADDR": "n1",
    "OMPI_COMM_WORLD_RANK": "3",
    "SLURMMESH_JOB_ROOT": "/jobs",
    "SLURMMESH_JOB_FOLDER": "/jobs/12",
    "SLURMMESH_JOB_ID": "12",
    "SUBMITIT_EXECUTOR": "slurmmesh",
    "MY_SLURM_SETTING": "kept",
}


def test_a_submit_takes_nothing_of_the_job_it_is_made_in() -> None:
    assert environment.for_submit(INSIDE_A_JOB) == {
        "PATH": "/bin",
        "HOME": "/home/me",
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JWT": "token",
        "SLURM_SACK_SOCKET": "/run/sack",
        "SLURM_CONF_SERVER": "head",
        "SQUEUE_FORMAT": "%j",
        "SINFO_FORMAT": "%P",
        "SLURMMESH_JOB_ROOT": "/jobs",
        "MY_SLURM_SETTING": "kept",
    }


def test_what_the_user_has_set_is_kept_outside_of_a_job() -> None:
    shell = {"HIP_VISIBLE_DEVICES": "2", "MASTER_PORT": "29500"}
    assert environment.for_submit(shell) == shell
    inside = environment.for_submit({**shell, "SLURMMESH_JOB_FOLDER": "/jobs/local-1"})
    assert inside == {"HIP_VISIBLE_DEVICES": "2"}


def test_a_client_is_deaf_to_formats() -> None:
    assert set(environment.for_client(INSIDE_A_JOB)) == {
        "PATH",
        "HOME",
        "SLURM_CONF",
        "SLURM_JWT",
        "SLURM_SACK_SOCKET",
        "SLURM_CONF_SERVER",
        "SLURM_TIME_FORMAT",
        "ROCR_VISIBLE_DEVICES",
        "SLINGSHOT_VNIS",
        "RANK",
        "MASTER_ADDR",
        "OMPI_COMM_WORLD_RANK",
        "SLURMMESH_JOB_ROOT",
        "SLURMMESH_JOB_FOLDER",
        "SLURMMESH_JOB_ID",
        "SUBMITIT_EXECUTOR",
        "MY_SLURM_SETTING",
    }


def test_a_step_knows_its_allocation_and_takes_no_options() -> None:
    kept = environment.for_step(INSIDE_A_JOB)
    assert {name for name in kept if name.startswith(("SLURM_", "SBATCH_", "SRUN_", "PMI"))} == {
        "SLURM_CONF",
        "SLURM_JWT",
        "SLURM_SACK_SOCKET",
        "SLURM_CONF_SERVER",
        "SLURM_JOB_ID",
        "SLURM_JOB_NODELIST",
        "SLURM_JOB_CPUS_PER_NODE",
        "SLURM_ARRAY_JOB_ID",
    }
    assert kept["SLURMMESH_JOB_FOLDER"] == "/jobs/12"


def test_tells_which_options_of_the_shell_are_not_used() -> None:
    assert environment.ignored_sbatch_options(INSIDE_A_JOB) == [
        "SBATCH_ACCOUNT",
        "SBATCH_PARTITION",
    ]

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.lab.environment import MARK, client_environment, daemon_environment
from slurmmesh.lab.spec import Layout

LAYOUT = Layout(Path("/tmp/lab"))
OUTER = [
    "SLURM_JOB_ID",
    "SLURM_CPU_BIND",
    "SLURMD_NODENAME",
    "SBATCH_PARTITION",
    "SALLOC_NO_BELL",
    "SRUN_DEBUG",
    "SINFO_FORMAT",
    "SQUEUE_FORMAT",
    "PMI_RANK",
    "PMIX_RANK",
    MARK,
]


def test_nothing_of_an_outer_job_reaches_the_lab() -> None:
    environ = {**dict.fromkeys(OUTER, "1"), "SLURM_CONF": "/etc/slurm.conf", "PATH": "/bin"}
    assert client_environment(environ, LAYOUT) == {
        "SLURM_CONF": "/tmp/lab/etc/slurm.conf",
        "PATH": "/bin",
    }


names = st.text(st.sampled_from("ABSLURM_PYTHON"), min_size=1)


@given(st.dictionaries(names, st.text()))
def test_everything_else_is_passed_on_unchanged(environ: dict[str, str]) -> None:
    kept = client_environment(environ, LAYOUT)
    assert kept.pop("SLURM_CONF") == "/tmp/lab/etc/slurm.conf"
    assert kept == {
        name: value
        for name, value in environ.items()
        if not name.startswith(("SLURM_", "SRUN_")) and name != "SLURM_CONF"
    }


def test_daemons_get_little() -> None:
    environ = {"HOME": "/root", "LD_PRELOAD": "x.so", "SLURM_JOB_ID": "1", "PYTHONPATH": "/p"}
    assert daemon_environment(environ, LAYOUT, "/usr/sbin") == {
        "HOME": "/root",
        "PATH": "/usr/sbin",
        "LANG": "C",
        "SLURM_CONF": "/tmp/lab/etc/slurm.conf",
        MARK: "/tmp/lab",
    }

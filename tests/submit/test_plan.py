"""Flags over settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from slurmmesh.errors import ConfigError, UsageError
from slurmmesh.submit.arguments import parse
from slurmmesh.submit.plan import Plan, make

Planned = Callable[..., Plan]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planned:
    """``planned("-N2 x.py", settings)``: the plan in a folder with these settings of a project."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))

    def plan(words: str, settings: str = "") -> Plan:
        (tmp_path / "slurmmesh.toml").write_text(settings)
        return make(parse(words.split()), tmp_path)

    return plan


def test_without_settings(planned: Planned, tmp_path: Path) -> None:
    plan = planned("x.py a -b")
    job = plan.job
    assert (job.program, job.args, job.node_range) == (("x.py",), ("a", "-b"), (1, 1))
    assert (job.chdir, job.job_root) == (str(tmp_path), str(tmp_path / "slurmmesh-jobs"))
    assert (plan.cluster, plan.wait, plan.follow, plan.dry_run) == ("auto", False, False, False)


def test_flags_rank_over_settings(planned: Planned) -> None:
    settings = """
        interface = "ib0"
        [submit]
        partition = "gpu"
        gpus-per-node = "8"
        cluster = "slurm"
        wait = true
    """
    plan = planned("-p debug x.py", settings)
    assert (plan.job.partition, plan.job.gpus_per_node, plan.job.interface) == ("debug", "8", "ib0")
    assert (plan.cluster, plan.wait) == ("slurm", True)
    assert planned("--cluster=local --interface hsn x.py", settings).job.interface == "hsn"


def test_lists_and_tables_of_settings_grow(planned: Planned) -> None:
    settings = """
        [submit]
        setup = ["module load rocm"]
        sbatch = ["--nice"]
        env = {A = "1", B = "2"}
    """
    job = planned("--setup true --sbatch=--hint=x --env B=3 --env C=4 x.py", settings).job
    assert job.setup == ("module load rocm", "true")
    assert job.sbatch == ("--nice", "--hint=x")
    assert job.env == {"A": "1", "B": "3", "C": "4"}


def test_a_profile(planned: Planned) -> None:
    settings = """
        [submit]
        time = "10"
        [profiles.long.submit]
        time = "2-0"
        requeue = true
    """
    assert planned("x.py", settings).job.time == "10"
    job = planned("--profile long --no-requeue x.py", settings).job
    assert (job.time, job.requeue) == ("2-0", False)


def test_a_relative_working_folder(planned: Planned, tmp_path: Path) -> None:
    assert planned("--chdir sub x.py").job.chdir == str(tmp_path / "sub")
    assert planned("-D /abs x.py").job.chdir == "/abs"


def test_what_is_shared_with_the_controllers_component(planned: Planned) -> None:
    settings = '[submit]\naccount = "me"\nconstraint = "mi300"\n'
    job = planned("-p cpu -c2 : -p gpu -N4 -t 60 x.py", settings).job
    assert job.controller is not None
    shared = (job.controller.partition, job.controller.account, job.controller.time)
    assert shared == ("cpu", "me", "60")
    assert (job.controller.constraint, job.controller.nodes) == (None, None)
    assert (job.partition, job.constraint, job.nodes) == ("gpu", "mi300", "4")


def test_what_only_slurm_uses(planned: Planned) -> None:
    words = "--time 5 -N2 -p gpu --sbatch=--nice -J n -c 2 --gpus-per-node 8 --spares 1 x.py"
    used = planned(words).only_for_slurm
    assert used == ["--time", "--partition", "--sbatch", "--job-name", "--cpus-per-task"]
    assert planned("-N2 --wait --env A=b x.py").only_for_slurm == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--follow --array 0-3 x.py", "use --wait"),
        ("--nodes 0 x.py", "at least one node"),
        ("--nodes 4-2 x.py", "runs backwards"),
        ("--nodes many x.py", "or a range"),
        ("--spares -1 x.py", "0 or more"),
        ("-N 2 --spares 1 -w node[1-4] x.py", "more nodes than"),
        ("--spares 1 -n 8 x.py", "--spares needs --nodes"),
        ("--mem lots x.py", "a size such as"),
        ("--mem-per-gpu 8X x.py", "a size such as"),
        ("-c 0 x.py", "1 or more"),
        ("-n two x.py", "1 or more"),
        ("--array 3-1 x.py", "--array"),
        ("--array 0-3%0 x.py", "number of tasks at once"),
        ("-w node[1- x.py", "--nodelist: host list"),
        ("-x node[3-1] x.py", "runs backwards"),
        ("--signal :60 x.py", "a signal such as"),
        ("--interface a^b x.py", "--interface"),
        ("--env 1A=b x.py", "no name of a variable"),
        ("--env NOT_SET_HERE x.py", "it is not set here"),
        ("--env SLURM_JOB_ID=1 x.py", "set it themselves"),
        ("--container-runtime pyxis x.py", "needs --container"),
        ("--template nosuch x.py --dry-run", "stands after the program"),
        ("--sbatch=--account=me x.py", "use --account"),
        ("-N2 : -N2 --array 1-2 x.py", "controller's component has one node"),
        ("-c2 : -N2 --array 1-2 x.py", "no arrays of heterogeneous"),
        ("-J  x.py", "what shall run"),
        ("--setup a\\ x.py", "last backslash"),
    ],
)
def test_what_cannot_be_is_refused(planned: Planned, words: str, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        planned(words)


def test_a_key_that_is_no_option_names_near_ones(planned: Planned) -> None:
    with pytest.raises(ConfigError, match="partition"):
        planned("x.py", '[submit]\npartitoin = "gpu"\n')

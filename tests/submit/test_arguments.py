"""The command line, as words to a request."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.config import load_settings
from slurmmesh.errors import ConfigError, UsageError
from slurmmesh.submit.arguments import Request, parse


def test_everything_at_once() -> None:
    words = (
        "-N 16 --gpus-per-node mi300x:8 -c 12 -t 2-12 -p gpu -J name --spares 2 --sbatch "
        "--account=me --sbatch=-Cx --cluster slurm --dry-run --parsable --wait --follow "
        "train.py -- --lr 3e-4"
    )
    assert parse(words.split()) == Request(
        program=("train.py",),
        args=("--lr", "3e-4"),
        name="name",
        nodes=16,
        spares=2,
        gpus_per_node="mi300x:8",
        cpus_per_task=12,
        time="2-12",
        partition="gpu",
        sbatch=("--account=me", "-Cx"),
        cluster="slurm",
        dry_run=True,
        parsable=True,
        wait=True,
        follow=True,
    )


def test_what_only_slurm_uses() -> None:
    words = "--time 5 -N2 -p gpu --sbatch=-Cx -J name -c 2 --gpus-per-node 8 --spares 1 x.py -- -t"
    used = ("--cpus-per-task", "--time", "--partition", "--job-name", "--sbatch")
    assert parse(words.split()).only_for_slurm == used
    assert parse(["-N2", "--wait", "x.py"]).only_for_slurm == ()


@pytest.mark.parametrize(
    "words", [["--nodes=3"], ["--nodes", "3"], ["-N3"], ["-N", "3"], ["-N=3"], ["-N", "1", "-N3"]]
)
def test_spellings_of_a_value(words: list[str]) -> None:
    assert parse([*words, "x.py"]).nodes == 3


@pytest.mark.parametrize(
    ("words", "program", "args"),
    [
        (["x.py"], ("x.py",), ()),
        (["x.py", "a", "-b", "--c=d"], ("x.py",), ("a", "-b", "--c=d")),
        (["x.py", "--", "--wait", "--"], ("x.py",), ("--wait", "--")),
        (["-m", "pkg.mod", "a"], ("-m", "pkg.mod"), ("a",)),
        (["-m", "pkg.mod", "--", "-m"], ("-m", "pkg.mod"), ("-m",)),
        (["--", "x.py", "a"], ("x.py",), ("a",)),
        (["x.py", "", "a b\nc"], ("x.py",), ("", "a b\nc")),
    ],
)
def test_the_program_and_its_arguments(
    words: list[str], program: tuple[str, ...], args: tuple[str, ...]
) -> None:
    request = parse(["-N2", *words])
    assert (request.program, request.args) == (program, args)


def test_values_may_begin_with_a_dash() -> None:
    request = parse(["-J", "-x", "--sbatch", "-A me", "--time", "-1", "x.py"])
    assert (request.name, request.sbatch, request.time) == ("-x", ("-A me",), "-1")


def test_defaults() -> None:
    request = parse(["x.py"])
    assert (request.nodes, request.spares, request.cluster) == (1, 0, "auto")
    assert request.gpus_per_node == parse(["--gpus-per-node=0", "x.py"]).gpus_per_node == ""


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "what shall run"),
        (["--wait"], "what shall run"),
        (["-m"], "name of a module"),
        (["--nodes"], "needs a value"),
        (["--nodes=many", "x.py"], "invalid int"),
        (["--nodez=3", "x.py"], "unrecognized"),
        (["--node=3", "x.py"], "unrecognized"),
        (["-x", "x.py"], "unrecognized"),
        (["--cluster=moon", "x.py"], "invalid choice"),
        (["--wait=yes", "x.py"], "explicit argument"),
        (["x.py", "--wait"], "stands after the program"),
        (["x.py", "a", "--nodes=4"], "stands after the program"),
    ],
)
def test_mistakes(words: list[str], hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        parse(words)


@given(st.lists(st.text(max_size=10), max_size=4))
def test_after_two_dashes_everything_is_the_programs(args: list[str]) -> None:
    assert parse(["x.py", "--", *args]).args == tuple(args)


def test_settings_come_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings({}).job_root == tmp_path / "slurmmesh-jobs"
    told = load_settings(
        {"SLURMMESH_JOB_ROOT": "~/x", "SLURMMESH_SLURM_TIMEOUT_S": "2.5", "HOME": "/home/me"}
    )
    assert told.job_root.is_absolute()
    assert told.slurm_timeout_s == 2.5
    assert told.stop_grace_s == load_settings({}).stop_grace_s


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("SLURMMESH_JOB_ROOT", ""),
        ("SLURMMESH_SLURM_TIMEOUT_S", "soon"),
        ("SLURMMESH_SLURM_PATIENCE_S", "-1"),
        ("SLURMMESH_STOP_GRACE_S", "inf"),
        ("SLURMMESH_STOP_GRACE_S", "0"),
        ("SLURMMESH_INTERFACE", "10.8.0.0/ib0"),
    ],
)
def test_wrong_settings_are_named(name: str, value: str) -> None:
    with pytest.raises(ConfigError, match=name):
        load_settings({name: value})

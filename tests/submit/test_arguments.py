"""The command line, as words to a request."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.options import OPTIONS, Option
from slurmmesh.submit.arguments import Request, parse


def test_everything_at_once() -> None:
    words = (
        "-N 16 --gpus-per-node mi300x:8 -c 12 -t 2-12 -p gpu -J name --spares 2 -A me -C zen4 "
        "--exclusive --requeue --setup one --setup two --env A=b=c --env D --sbatch=--nice "
        "--cluster slurm --config file --profile mine --parsable --wait --follow "
        "train.py -- --lr 3e-4"
    )
    assert parse(words.split()) == Request(
        program=("train.py",),
        args=("--lr", "3e-4"),
        options={
            "nodes": "16",
            "gpus_per_node": "mi300x:8",
            "cpus_per_task": "12",
            "time": "2-12",
            "partition": "gpu",
            "job_name": "name",
            "spares": 2,
            "account": "me",
            "constraint": "zen4",
            "exclusive": True,
            "requeue": True,
            "setup": ["one", "two"],
            "env": {"A": "b=c", "D": None},
            "sbatch": ["--nice"],
        },
        command={"cluster": "slurm", "parsable": True, "wait": True, "follow": True},
        config="file",
        profile="mine",
    )


@pytest.mark.parametrize("option", OPTIONS.values(), ids=list(OPTIONS))
def test_each_option_of_sbatch_in_each_spelling(option: Option) -> None:
    if not option.metavar:
        assert parse([f"--{option.name}", "x.py"]).options == {option.field: True}
        return
    spellings = [[f"--{option.name}=-v w"]]
    if not option.value_optional:
        spellings.append([f"--{option.name}", "-v w"])
    if option.short:
        spellings += [[f"-{option.short}", "-v w"], [f"-{option.short}-v w"]]
    for words in spellings:
        assert parse([*words, "x.py"]).options == {option.field: "-v w"}


# What the manual page of sbatch calls them.
_NAMES = """
    nodes ntasks gpus-per-node gres cpus-per-task mem mem-per-gpu time partition account qos
    constraint nodelist exclude exclusive reservation job-name output error signal clusters
    requeue comment mail-type mail-user dependency begin switches network licenses array chdir
"""
_LETTERS = """
    N=nodes n=ntasks c=cpus-per-task t=time p=partition A=account q=qos C=constraint w=nodelist
    x=exclude J=job-name o=output e=error M=clusters L=licenses d=dependency b=begin a=array
    D=chdir
"""


def test_the_options_that_slurm_users_know() -> None:
    assert sorted(_NAMES.split()) == sorted(option.name for option in OPTIONS.values())
    letters = [f"{option.short}={option.name}" for option in OPTIONS.values() if option.short]
    assert sorted(_LETTERS.split()) == sorted(letters)
    assert OPTIONS.keys() <= {each.name for each in dataclasses.fields(SlurmJob)}


def test_components() -> None:
    words = "-p cpu -c 4 --sbatch=--nice : -p gpu -N8 -J name x.py"
    request = parse(words.split())
    assert request.controller == {"partition": "cpu", "cpus_per_task": "4", "sbatch": ["--nice"]}
    assert request.options == {"partition": "gpu", "nodes": "8", "job_name": "name"}


@pytest.mark.parametrize(
    ("words", "requeue"), [(["--requeue", "--no-requeue"], False), (["--requeue"], True)]
)
def test_the_last_word_on_a_requeue_counts(words: list[str], requeue: bool) -> None:
    assert parse([*words, "x.py"]).options == {"requeue": requeue}


@pytest.mark.parametrize(
    "words", [["--nodes=3"], ["--nodes", "3"], ["-N3"], ["-N", "3"], ["-N=3"], ["-N", "1", "-N3"]]
)
def test_spellings_of_a_value(words: list[str]) -> None:
    assert parse([*words, "x.py"]).options["nodes"] == "3"


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


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ([], "what shall run"),
        (["--wait"], "what shall run"),
        (["-m"], "name of a module"),
        (["--nodes"], "needs a value"),
        (["--spares=many", "x.py"], "invalid int"),
        (["--nodez=3", "x.py"], "unrecognized"),
        (["--node=3", "x.py"], "unrecognized"),
        (["-z", "x.py"], "unrecognized"),
        (["--dry-run", "--json", "x.py"], "do not go together"),
        (["-J", "a", ":", "-N2", "x.py"], "--job-name is said of the whole job"),
        (["--wait", ":", "-N2", "x.py"], "--wait is said of the whole job"),
        (["-c1", ":", "-N2", ":", "-N3", "x.py"], "one ':'"),
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

"""A job as data, and the script it becomes."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmmesh._version import __version__
from slurmmesh.errors import UsageError
from slurmmesh.slurm.bootstrap import python_code
from slurmmesh.slurm.job import Resources, SlurmJob
from slurmmesh.slurm.template import command_line_options, render, template_names
from slurmmesh.slurm.template_check import directives

GOLDEN = Path(__file__).parent / "golden"
PLAIN = SlurmJob(
    "train.py", job_root="/shared/jobs", chdir="/shared/work", python="/opt/venv/bin/python"
)
FULL = dataclasses.replace(
    PLAIN,
    program=("-m", "package.train"),
    args=("--lr", "3e-4", "two words", "it's\n#SBATCH --nodes=99\n$(id)"),
    chdir="/shared/a b'\"$x\nö",
    job_name='my "run" #1',
    nodes=16,
    spares=1,
    gpus_per_node="mi300x:8",
    cpus_per_task=96,
    time="2-12",
    partition="gpu",
    account="me",
    constraint="zen4&mi300",
    comment="no # comment",
    signal="USR1@120",
    requeue=True,
    sbatch=("--gpu-bind=none", "-H"),
    setup=("module load rocm",),
    env={"NCCL_DEBUG": "IN'FO\n$x"},
    interface="10.8.0.0/16",
)


@pytest.mark.parametrize("template", template_names())
@pytest.mark.parametrize(("kind", "job"), [("plain", PLAIN), ("full", FULL)])
def test_golden_scripts(kind: str, job: SlurmJob, template: str) -> None:
    """UPDATE_GOLDEN=1 writes them anew; then read the difference."""
    golden = GOLDEN / f"{template}-{kind}.sh"
    script = render(dataclasses.replace(job, template=template))
    if "UPDATE_GOLDEN" in os.environ:
        golden.write_text(script.replace(__version__, "VERSION"), encoding="utf-8")
    assert script == golden.read_text(encoding="utf-8").replace("VERSION", __version__)


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
WITH_ANY_TEXT = (
    *("partition", "account", "qos", "constraint", "comment", "job_name", "licenses", "network"),
    *("switches", "mail_user", "dependency", "begin", "reservation", "gres", "exclusive"),
    *("output", "error", "container", "interface", "program"),
)
VALUES: dict[str, Any] = {
    **dict.fromkeys(WITH_ANY_TEXT, TEXT),
    **dict.fromkeys(("chdir", "job_root", "python"), TEXT.map("/{}".format)),
    "sbatch": st.lists(TEXT.map("--wckey={}".format), max_size=2),
    "setup": st.lists(TEXT, max_size=2),
    "env": st.dictionaries(st.sampled_from(["A", "B", "_c1"]), TEXT, max_size=3),
    "args": st.lists(TEXT, max_size=3),
}
# A few at a time: with all of them, one would always be refused.
OPTIONS = st.lists(st.sampled_from(sorted(VALUES)), max_size=3, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: VALUES[name] for name in names})
)


def tamed(name: str, value: Any) -> Any:
    """A harmless value of the same form."""
    match value:
        case list():
            return [tamed(name, each) for each in value]
        case dict():
            return dict.fromkeys(value, "x")
    return {"sbatch": "--wckey=x", "setup": "true"}.get(
        name, "/x" if value.startswith("/") else "x"
    )


@given(OPTIONS)
@settings(max_examples=60, deadline=None)
def test_no_value_adds_a_line(options: dict[str, Any]) -> None:
    try:
        job = dataclasses.replace(PLAIN, **options)
        text = render(job)
    except UsageError:
        return
    given = {name: value for name, value in options.items() if value != ""}
    tame = {name: tamed(name, value) for name, value in given.items()}
    tame.update((name, "/x") for name in ("chdir", "job_root", "python") if name in given)
    plain = render(dataclasses.replace(PLAIN, **tame))
    beside = command_line_options(job)
    assert len(directives(text)) + len(beside) == len(directives(plain))
    assert text.count("\n") + len(beside) == plain.count("\n")


def test_bash_accepts_it_and_gives_each_word_as_it_was() -> None:
    script = render(FULL)
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    at = script.index("\nsm_controller=")
    last = script[at:].replace('exec "$sm_python"', "printf '%s\\0'")
    done = subprocess.run(["bash", "-c", last], capture_output=True, check=True, text=True)
    words = ["-u", "-c", python_code("slurmmesh.hosts.program"), *FULL.argv]
    assert done.stdout.split("\0")[:-1] == words


def test_a_folder_that_no_directive_can_carry_goes_on_the_command_line() -> None:
    job = dataclasses.replace(PLAIN, job_root="/a\nb %/jobs")
    assert "--output" not in render(job)
    assert command_line_options(job) == ["--output=/a\nb %%/jobs/%j.out"]
    array = dataclasses.replace(job, array="0-3")
    assert command_line_options(array) == ["--output=/a\nb %%/jobs/%A_%a.out"]
    assert command_line_options(PLAIN) == []


def test_a_relative_file_for_the_output_is_in_the_working_folder() -> None:
    lines = directive_lines(output="out %j", error="/x", chdir="/a%j")
    assert {"--output='/a%%j/out %j'", "--error=/x"} <= set(lines)
    odd = dataclasses.replace(PLAIN, chdir="/a\n%b", error="x")
    assert command_line_options(odd) == ["--error=/a\n%%b/x"]
    with pytest.raises(UsageError, match="backslash"):
        render(dataclasses.replace(PLAIN, chdir="/a\\b", output="x"))


def test_no_variable_of_the_user_is_one_of_the_scripts() -> None:
    """Whatever is exported already stays so when the shell sets a variable of that name."""
    script = render(dataclasses.replace(FULL, output="x", error="y"))
    names = set(re.findall(r"^(?:\[.*\] && )?\s*(\w+)=", script, re.MULTILINE))
    assert {"sm_job_id", "sm_output", "sm_earlier", "sm_python"} <= names
    assert all(name.startswith("sm_") for name in names)


def test_the_name_is_the_programs_unless_given() -> None:
    assert PLAIN.job_name == "train.py"
    assert dataclasses.replace(PLAIN, program=("x/y\nz.py",), job_name=None).job_name == "y_z.py"
    assert dataclasses.replace(PLAIN, program=("-m", "a.b"), job_name=None).job_name == "a.b"


def directive_lines(**changes: Any) -> list[str]:
    lines = directives(render(dataclasses.replace(PLAIN, **changes))).values()
    return [line.removeprefix("#SBATCH ") for line in lines]


def test_each_component_has_its_own_lines_and_is_kept_when_a_node_is_lost() -> None:
    controller = Resources(partition="cpu", cpus_per_task=8, sbatch=["--hint=nomultithread"])
    lines = directive_lines(controller=controller, nodes=4, spares=1, partition="gpu", time=30)
    at = lines.index("hetjob")
    assert lines[:at] == [
        *("--job-name=train.py", "--output=/shared/jobs/%j.out", "--no-requeue"),
        *("--nodes=1", "--ntasks-per-node=1", "--cpus-per-task=8", "--partition=cpu"),
        *("--hint=nomultithread", "--no-kill"),
    ]
    assert lines[at + 1 :] == [
        *("--nodes=5", "--ntasks-per-node=1", "--time=30", "--partition=gpu", "--no-kill"),
    ]


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ("USR1@120", "--signal=B:USR1@120"),
        ("R:USR1", "--signal=BR:USR1"),
        ("B:10", "--signal=B:10"),
    ],
)
def test_a_signal_goes_to_the_controller(given: str, line: str) -> None:
    assert line in directive_lines(signal=given)


@pytest.mark.parametrize(
    ("changes", "nodes"),
    [
        ({}, "1"),
        ({"nodes": 4, "spares": 2}, "4"),
        ({"nodes": "2-4", "spares": 1}, "$((SLURM_JOB_NUM_NODES - 1))"),
        ({"ntasks": 9}, "$((SLURM_JOB_NUM_NODES - 0))"),
        (
            {"nodes": "2-4", "controller": Resources()},
            "$((SLURM_JOB_NUM_NODES_HET_GROUP_1 - 0))",
        ),
    ],
)
def test_the_number_of_hosts_is_left_to_slurm_where_it_decides(
    changes: dict[str, Any], nodes: str
) -> None:
    script = render(dataclasses.replace(PLAIN, **changes))
    assert f"export SLURMMESH_NODES={nodes}\n" in script


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"nodes": -4}, "--nodes"),
        ({"nodes": "4-2"}, "backwards"),
        ({"nodes": True}, "neither text nor a number"),
        ({"spares": -1}, "--spares"),
        ({"spares": 1, "ntasks": 3}, "--spares needs --nodes"),
        ({"cpus_per_task": 0}, "--cpus-per-task"),
        ({"gpus_per_node": "-1"}, "--gpus-per-node"),
        ({"gpus_per_node": "mi300x:"}, "--gpus-per-node"),
        ({"gpus_per_node": "8\n#SBATCH"}, "--gpus-per-node"),
        ({"time": "soon"}, "no time"),
        ({"partition": ""}, "--partition"),
        ({"partition": "a\nb"}, "--partition"),
        ({"job_name": "a\nb"}, "--job-name"),
        ({"array": "a"}, "--array"),
        ({"array": "0-3", "controller": Resources()}, "no arrays"),
        ({"sbatch": ("--nodes=3",)}, "use --nodes"),
        ({"setup": ("a\nb",)}, "one line"),
        ({"setup": "abc"}, "a list"),
        ({"env": {"A B": "x"}}, "no name of a variable"),
        ({"env": {"SLURM_JOB_ID": "1"}}, "set it themselves"),
        ({"env": {"SLURMMESH_SPARES": "1"}}, "set it themselves"),
        ({"env": {"UID": "1"}}, "bash sets it itself"),
        ({"env": {"NOWHERE_TO_BE_SEEN": None}}, "not set here"),
        ({"container_runtime": "apptainer"}, "--container IMAGE"),
        ({"program": ()}, "SCRIPT"),
        ({"program": ("-x",)}, "no script"),
        ({"program": ("-m", "a b")}, "no module"),
        ({"args": ("\0",)}, "NUL"),
        ({"job_root": "jobs"}, "absolute"),
        ({"python": ""}, "absolute"),
    ],
)
def test_bad_values_are_told_before_anything_starts(change: dict[str, Any], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        dataclasses.replace(PLAIN, **change)


def test_a_backslash_in_the_job_root_is_refused() -> None:
    with pytest.raises(UsageError, match="backslash"):
        render(dataclasses.replace(PLAIN, job_root="/a\\b"))


@pytest.mark.parametrize(
    "fields",
    [
        *({"program": value} for value in (None, 5, [1], b"x")),
        *({"spares": value} for value in ("1", 1.5, True, None)),
        *({"requeue": value} for value in ("no", 1)),
        *({"env": value} for value in (["A=1"], None, {1: "A"})),
        *({name: None} for name in ("args", "setup", "sbatch", "template", "container")),
        *({name: 5} for name in ("chdir", "python", "job_root", "interface", "args", "template")),
        *({"controller": {"nodes": 1}}, {"chdir": b"/x"}, {"comment": "a\ud800"}),
    ],
)
def test_what_is_no_value_of_a_field_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        render(dataclasses.replace(PLAIN, **fields))


def test_files_may_be_paths() -> None:
    job = dataclasses.replace(PLAIN, program=Path("a/b.py"), chdir=Path("/x"))
    assert (job.program, job.chdir) == (("a/b.py",), "/x")

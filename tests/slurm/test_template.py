"""A job as data, and the script it becomes."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmmesh._version import __version__
from slurmmesh.errors import UsageError
from slurmmesh.slurm.bootstrap import python_code
from slurmmesh.slurm.job import SlurmJob
from slurmmesh.slurm.template import command_line_options, render

GOLDEN = Path(__file__).parent / "golden"
PLAIN = SlurmJob(
    program=("train.py",),
    job_root=Path("/shared/jobs"),
    cwd=Path("/shared/work"),
    python="/opt/venv/bin/python",
)
FULL = dataclasses.replace(
    PLAIN,
    program=("-m", "package.train"),
    args=("--lr", "3e-4", "two words", "it's\n#SBATCH --nodes=99\n$(id)"),
    cwd=Path("/shared/a b'\"$x\nö"),
    name='my "run" #1',
    nodes=16,
    spares=1,
    gpus_per_node="mi300x:8",
    cpus_per_task=96,
    time="2-12",
    partition="gpu",
    sbatch=("--account=me", "-C zen4&mi300", "--comment=no # comment"),
)


@pytest.mark.parametrize(("name", "job"), [("plain", PLAIN), ("full", FULL)])
def test_golden_scripts(name: str, job: SlurmJob) -> None:
    golden = (GOLDEN / f"{name}.sh").read_text(encoding="utf-8")
    assert render(job) == golden.replace("VERSION", __version__)


def directives(script: str) -> list[str]:
    """As sbatch finds them: up to the first line that is no comment."""
    found = []
    for line in script.split("\n"):
        if line.startswith("#SBATCH"):
            found.append(line)
        elif line.strip() and not line.startswith("#"):
            break
    return found


TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)


@given(TEXT, TEXT, st.lists(TEXT, max_size=3), TEXT, TEXT)
@settings(max_examples=100, deadline=None)
def test_no_value_adds_a_directive_or_a_command(
    name: str, script: str, args: list[str], folder: str, comment: str
) -> None:
    try:
        job = dataclasses.replace(
            PLAIN,
            program=(script,),
            args=tuple(args),
            name=name,
            cwd=Path("/" + folder),
            job_root=Path("/" + folder),
            sbatch=(f"--comment={comment}",),
        )
        text = render(job)
    except UsageError:
        return
    plain = render(dataclasses.replace(PLAIN, sbatch=("--comment=x",)))
    beside = command_line_options(job)
    assert len(directives(text)) + len(beside) == len(directives(plain))
    assert text.count("\n") + len(beside) == plain.count("\n")


def test_bash_accepts_it_and_gives_each_word_as_it_was() -> None:
    script = render(FULL)
    subprocess.run(["bash", "-n"], input=script.encode(), check=True)
    at = script.index("\ncontroller=")
    last = script[at:].replace('exec "$python"', "printf '%s\\0'")
    done = subprocess.run(["bash", "-c", last], capture_output=True, check=True, text=True)
    words = ["-u", "-c", python_code("slurmmesh.hosts.program"), *FULL.argv]
    assert done.stdout.split("\0")[:-1] == words


def test_a_folder_that_no_directive_can_carry_goes_on_the_command_line() -> None:
    job = dataclasses.replace(PLAIN, job_root=Path("/a\nb %/jobs"))
    assert "--output" not in render(job)
    assert command_line_options(job) == ["--output=/a\nb %%/jobs/%j.out"]
    assert command_line_options(PLAIN) == []


def test_the_name_is_the_programs_unless_given() -> None:
    assert PLAIN.name == "train.py"
    assert dataclasses.replace(PLAIN, program=("x/y\nz.py",), name="").name == "y_z.py"
    assert dataclasses.replace(PLAIN, program=("-m", "a.b"), name="").name == "a.b"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"nodes": 0}, "at least one node"),
        ({"nodes": -4}, "at least one node"),
        ({"spares": -1}, "--spares"),
        ({"cpus_per_task": 0}, "--cpus-per-task"),
        ({"gpus_per_node": "-1"}, "--gpus-per-node"),
        ({"gpus_per_node": "mi300x:"}, "--gpus-per-node"),
        ({"gpus_per_node": "8\n#SBATCH"}, "--gpus-per-node"),
        ({"time": "soon"}, "no time"),
        ({"partition": ""}, "--partition"),
        ({"partition": "a\nb"}, "--partition"),
        ({"name": "a\nb"}, "--job-name"),
        ({"sbatch": ("--nodes=3",)}, "use --nodes"),
        ({"program": ()}, "SCRIPT"),
        ({"program": ("-x",)}, "no script"),
        ({"program": ("-m", "a b")}, "no module"),
        ({"args": ("\0",)}, "NUL"),
        ({"job_root": Path("jobs")}, "absolute"),
        ({"python": ""}, "absolute"),
    ],
)
def test_bad_values_are_told_before_anything_starts(change: dict[str, object], word: str) -> None:
    with pytest.raises(UsageError, match=word):
        dataclasses.replace(PLAIN, **change)  # type: ignore[arg-type]


def test_a_backslash_in_the_job_root_is_refused() -> None:
    with pytest.raises(UsageError, match="backslash"):
        render(dataclasses.replace(PLAIN, job_root=Path("/a\\b")))

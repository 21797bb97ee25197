"""Values in shell words and in #SBATCH lines."""

from __future__ import annotations

import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slurmmesh.errors import UsageError
from slurmmesh.slurm.passthrough import directive_of
from slurmmesh.slurm.quoting import directive_value, output_pattern, sh

# What the command line of a process can hold: bytes but NUL, as Python shows them.
ARGUMENT = st.binary(max_size=30).map(
    lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape")
)
NASTY = ["", "\n", "'", "\\", '"', "$x", "`id`", "!", "ö", "a\n#SBATCH -N9", "-n", "\x01", "\udcff"]


@given(st.lists(st.one_of(ARGUMENT, st.sampled_from(NASTY)), min_size=1, max_size=40))
@settings(max_examples=50, deadline=None)
def test_bash_gets_each_word_as_it_was(words: list[str]) -> None:
    quoted = [sh(word) for word in words]
    assert all("\n" not in word for word in quoted)
    script = "printf '%s\\0' " + " ".join(quoted)
    done = subprocess.run(
        ["bash"], input=script.encode("utf-8", "surrogateescape"), capture_output=True, check=True
    )
    assert done.stdout.split(b"\0")[:-1] == [w.encode("utf-8", "surrogateescape") for w in words]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain-1", "plain-1"),
        ('my "run" #1', "'my \"run\" #1'"),
        ("it's", '"it\'s"'),
        ("back\\slash", '"back\\\\slash"'),
        ("both '\"", '"both \'\\""'),
        ("ö", "'ö'"),
    ],
)
def test_directive_values(value: str, text: str) -> None:
    assert directive_value(value, "--x") == text


@pytest.mark.parametrize("value", ["", "a\nb", "a\rb", "a\tb", "\x00", "\x7f"])
def test_a_directive_cannot_carry(value: str) -> None:
    with pytest.raises(UsageError, match="--comment"):
        directive_value(value, "--comment")


def test_where_slurm_writes() -> None:
    assert output_pattern("/a %j b") == "/a %%j b/%j.out"
    with pytest.raises(UsageError, match="SLURMMESH_JOB_ROOT"):
        output_pattern("/a\\b")


@pytest.mark.parametrize(
    ("text", "directive"),
    [
        ("--wckey=me", "--wckey=me"),
        ("--wckey me", "--wckey=me"),
        ("-B 2:2", "-B 2:2"),
        ("-B2:2", "-B 2:2"),
        ("-H", "-H"),
        ("--spread-job", "--spread-job"),
        ("--bb=a b # c", "--bb='a b # c'"),
        ("--bb=a=b", "--bb=a=b"),
        ("--gpus=8", "--gpus=8"),
        ("--ntasks-per-core=1", "--ntasks-per-core=1"),
    ],
)
def test_options_that_are_handed_on(text: str, directive: str) -> None:
    assert directive_of(text) == directive


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("--nodes=4", "use --nodes"),
        ("-N4", "use --nodes"),
        ("-A me", "use --account"),
        ("-Ame", "use --account"),
        ("-o /x", "use --output"),
        ("--out=/x", "use --output"),
        ("--no-kill", "sets it itself"),
        ("--hetjob", "put a : between"),
        ("--wrap=true", "SCRIPT"),
        ("--parsable", "use --parsable"),
        ("account=me", "write it as --sbatch=--"),
        ("", "no option"),
        ("--", "no option"),
        ("--bb=a\n#SBATCH --nodes=9", "newline"),
        ("--bb=", "empty"),
        ("-B me\nrm", "newline"),
    ],
)
def test_options_that_are_not(text: str, hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        directive_of(text)


@given(st.text(max_size=40))
def test_no_option_makes_a_second_line(text: str) -> None:
    try:
        directive = directive_of(text)
    except UsageError:
        return
    assert "\n" not in directive
    assert directive.startswith("-")

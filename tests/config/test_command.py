"""``slurmmesh config`` as users run it, and the table of options behind it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurmmesh.config import load_layers
from slurmmesh.config.variables import check_names
from slurmmesh.errors import ConfigError
from slurmmesh.submit import arguments
from slurmmesh.submit.keys import submit_keys

ROOT = Path(__file__).parents[2]


@pytest.fixture
def command(user):
    def run(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "slurmmesh", "config", *words],
            cwd=user.folder,
            env={**os.environ, **user.environ, "PYTHONPATH": str(ROOT), **environ},
            capture_output=True,
            text=True,
            encoding="utf-8",
        )

    return run


def test_each_value_with_its_origin(user, command) -> None:
    user.write("site", 'profile = "big"\n[profiles.big]\ninterface = "ib0"')
    user.write("project", 'submit.setup = ["a\\nb"]\nsubmit.env = { A = "é" }')
    done = command("--config", "../../../extra.toml", SLURMMESH_STOP_GRACE_S="3")
    assert done.returncode == 2
    assert done.stderr == (
        "slurmmesh: error: --config '../../../extra.toml': there is no such file\n"
    )
    done = command(SLURMMESH_STOP_GRACE_S="3", LC_ALL="C")
    assert done.stderr == ""
    lines = [line.split("  #") for line in done.stdout.splitlines()]
    shown = [tuple(part.strip() for part in parts) for parts in lines]
    assert shown == [
        (f'job_root = "{user.folder}/slurmmesh-jobs"', "default"),
        ("slurm_timeout_s = 30.0", "default"),
        ("slurm_patience_s = 5.0", "default"),
        ("stop_grace_s = 3.0", "SLURMMESH_STOP_GRACE_S"),
        ('interface = "ib0"', f"{user.site_file}:3 (profile big)"),
        ("log_max_mb = 100.0", "default"),
        ("log_keep = 4", "default"),
        ('submit.setup = ["a\\nb"]', f"{user.project_file}:1"),
        ('submit.env.A = "é"', f"{user.project_file}:2"),
        ("",),
        ("settings files, each over those above it:",),
        (f"site     {user.site_file}",),
        (f"user     {user.user_file}  (not there)",),
        (f"project  {user.project_file}",),
        ("profiles: big",),
        (f"profile in use: big, from {user.site_file}:1",),
    ]


def test_some_keys_only(user, command) -> None:
    user.write("user", "submit.env = { A = 1, B = 2 }\nsubmit.partition = 'gpu'")
    done = command("stop-grace-s", "submit.gpus-per-node", "partition", "env", "env.A")
    assert [line.partition("  #")[0].strip() for line in done.stdout.splitlines()] == [
        "stop_grace_s = 15.0",
        "submit.gpus_per_node",
        'submit.partition = "gpu"',
        'submit.env.A = "1"',
        'submit.env.B = "2"',
    ]
    assert done.stdout.splitlines()[1].endswith("# not set")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("job_rot", "there is no setting 'job_rot': did you mean job_root?"),
        ("submit.job_root", "there is no setting 'submit.job_root'"),
        ("partition.x", "there is no setting 'partition.x'"),
        ("colour", "slurmmesh config shows what is set"),
        ("--colour", "unrecognized arguments: --colour"),
    ],
)
def test_keys_that_are_none(command, word: str, said: str) -> None:
    done = command(word)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_for_programs(user, command) -> None:
    user.write("config", "[submit]\nspares = 2\nenv = ['HERE']\n[profiles.p]\ninterface = 'ib0'")
    done = command("--json", "--config", str(user.config_file), "--profile", "p")
    told = json.loads(done.stdout)
    origin = {"kind": "config", "name": str(user.config_file), "line": 2, "profile": ""}
    assert told["values"]["submit.spares"] == {"value": 2, "origin": origin}
    assert told["values"]["submit.env.HERE"]["value"] is None
    assert told["values"]["interface"]["origin"] == {**origin, "line": 5, "profile": "p"}
    assert told["values"]["job_root"]["value"] == str(user.folder / "slurmmesh-jobs")
    assert told["files"] == [
        {"kind": "user", "path": str(user.user_file), "found": False},
        {"kind": "project", "path": str(user.folder / "slurmmesh.toml"), "found": False},
        {"kind": "config", "path": str(user.config_file), "found": True},
    ]
    assert told["profiles"] == ["p"]
    assert told["profile"]["value"] == "p"
    assert json.loads(command("--json", "spares").stdout)["values"] == {"submit.spares": None}


def test_its_reader_may_be_gone(user) -> None:
    environ = {**os.environ, **user.environ, "PYTHONPATH": str(ROOT)}
    read_end, write_end = os.pipe()
    os.close(read_end)
    with open(write_end, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "slurmmesh", "config"],
            cwd=user.folder,
            env=environ,
            stdout=gone,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_no_variable_that_the_code_names_is_unknown() -> None:
    sources = [*ROOT.glob("slurmmesh/**/*.py"), *ROOT.glob("sbatch_templates/*")]
    text = "".join(path.read_text() for path in sources if path.is_file())
    names = set(re.findall(r"\bSLURMMESH_[A-Z_]*[A-Z]\b", text))
    assert {"SLURMMESH_JOB_ROOT", "SLURMMESH_JOB_FOLDER"} <= names
    check_names(dict.fromkeys(names, "x"), submit_keys())


def test_the_files_in_the_guide_can_be_read(user) -> None:
    blocks = re.findall(
        r"```toml\n(.*?)```", (ROOT / "docs" / "settings.md").read_text(), re.DOTALL
    )
    assert len(blocks) >= 3
    for block in blocks:
        user.write("user", block)
        load_layers(user.environ, cwd=str(user.folder), submit_keys=submit_keys())


# ------------------------------------------------------------------ the options

# What only makes sense for one call, or is no option of submit in a file.
ONLY_FLAGS = {"config", "profile", "dry_run", "test_only", "parsable", "json", "help", "interface"}


def test_every_option_of_submit_can_be_set() -> None:
    flags = {action.dest for action in arguments._parser()._actions}
    assert submit_keys().keys() == flags - ONLY_FLAGS


def test_the_options_kinds_are_those_of_the_flags() -> None:
    kinds = {}
    for action in arguments._parser()._actions:
        if action.nargs == 0:
            kinds[action.dest] = {"flag"}
        elif action.nargs == "?":
            kinds[action.dest] = {"optional"}
        elif type(action).__name__ == "_AppendAction":
            kinds[action.dest] = {"list", "table"}
        else:
            kinds[action.dest] = {"number"} if action.type is int else {"text", "path", "template"}
    assert all(key.kind in kinds[name] for name, key in submit_keys().items())


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("nodes = 0", "a job needs at least one node"),
        ("nodes = '4-2'", "the range runs backwards"),
        ("time = 'soon'", "'soon' is no time"),
        ('comment = "a\\nb"', "has a newline or another control character"),
        ("cluster = 'moon'", "'moon' is none of auto, slurm, local"),
        ("container_runtime = 'x'", "'x' is none of apptainer, pyxis"),
        ("sbatch = ['account=me']", "is no option of sbatch"),
    ],
)
def test_values_are_checked_where_they_stand(user, line: str, said: str) -> None:
    path = user.write("user", f"[submit]\n{line}")
    with pytest.raises(ConfigError, match=said) as caught:
        load_layers(user.environ, cwd=str(user.folder), submit_keys=submit_keys())
    assert str(caught.value).startswith(f"{path}:2: ")

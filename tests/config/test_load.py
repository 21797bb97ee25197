"""Settings from everywhere at once: which wins, and that each knows where it came from."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.config import SETTINGS, Origin, Settings, load_layers, load_settings

FILES = ("site", "user", "project", "config")


def test_without_anything_there_are_defaults(user) -> None:
    loaded = user.load()
    assert loaded.settings == Settings(user.folder / "slurmmesh-jobs", 30.0, 5.0, 15.0, "")
    assert {str(each.origin) for each in loaded.values.values()} == {"default"}
    assert loaded.submit == {}
    assert [(place.kind, place.found) for place in loaded.places] == [
        ("user", False),
        ("project", False),
    ]


def test_each_layer_ranks_over_those_before(user) -> None:
    """Each layer sets its own key and all that later ones set: the last to set a key shows."""
    names = ["site", "user", "project", "config", "profile", "variable"]
    text = {}
    for rank, name in enumerate(names):
        keys = "".join(f'V{later} = "{name}"\n' for later in range(rank, len(names)))
        text[name] = f"[submit.env]\n{keys}"
    profile = text.pop("profile").replace("[submit.env]", "[profiles.p.submit.env]")
    for kind in FILES:
        # The profile is in the lowest file: it still ranks over all files.
        user.write(kind, text[kind] + (profile if kind == "site" else ""))
    lines = text["variable"].replace('"', "").replace(" ", "").splitlines()
    user.environ["SLURMMESH_SUBMIT_ENV"] = "\n".join(lines[1:])
    loaded = user.load(config_file=str(user.config_file), profile="p")
    assert loaded.submit["env"].value == {f"V{i}": name for i, name in enumerate(names)}
    origins = [loaded.values[f"submit.env.V{i}"].origin for i in range(len(names))]
    assert [origin.kind for origin in origins] == ["site", "user", "project", "config", "site",
                                                   "variable"]  # fmt: skip
    assert str(origins[0]) == f"{user.site_file}:2"
    assert str(origins[4]) == f"{user.site_file}:9 (profile p)"
    assert str(origins[5]) == "SLURMMESH_SUBMIT_ENV"
    assert loaded.submit["env"].origin == origins[5]


RANKS = (*FILES, "profile", "variable")


def test_whoever_says_nothing_leaves_it_to_those_below(user) -> None:
    """Every choice of who sets one key: the highest of them gives it."""
    for bits in range(1 << len(RANKS)):
        setting = [name for rank, name in enumerate(RANKS) if bits >> rank & 1]
        for kind in FILES:
            user.write(kind, f'interface = "{kind}"\n' if kind in setting else "")
        with user.site_file.open("a") as file:
            file.write("[profiles.p]\n" + 'interface = "profile"' * ("profile" in setting))
        environ = {"SLURMMESH_INTERFACE": "variable"} if "variable" in setting else {}
        loaded = load_layers(
            user.environ | environ,
            cwd=str(user.folder),
            config_file=str(user.config_file),
            profile="p",
        )
        assert loaded.settings.interface == (setting[-1] if setting else "")


def test_settings_and_options_of_every_kind(user) -> None:
    user.write(
        "project",
        """
        job-root = "../jobs"
        slurm_timeout_s = 10
        interface = " ib0 "
        [submit]
        gpus-per-node = 8
        partition = "gpu"
        spares = 2
        chdir = "run"
        template = "./site.sh.j2"
        wait = true
        exclusive = "user"
        setup = ["module load rocm", 'echo "a # b"']
        env = { OMP_NUM_THREADS = 8, EMPTY = "" }
        """,
    )
    loaded = user.load()
    code = user.folder.parents[1]
    assert loaded.settings == Settings(code / "jobs", slurm_timeout_s=10.0, interface="ib0")
    assert {key: each.value for key, each in loaded.submit.items()} == {
        "gpus_per_node": "8",
        "partition": "gpu",
        "spares": 2,
        "chdir": str(code / "project" / "run"),
        "template": str(code / "project" / "site.sh.j2"),
        "wait": True,
        "exclusive": "user",
        "setup": ("module load rocm", 'echo "a # b"'),
        "env": {"OMP_NUM_THREADS": "8", "EMPTY": ""},
    }
    assert loaded.submit["exclusive"].origin == Origin("project", str(user.project_file), 12)


def test_the_same_from_variables(user) -> None:
    user.environ |= {
        "SLURMMESH_JOB_ROOT": "~/jobs",
        "SLURMMESH_STOP_GRACE_S": "2.5",
        "SLURMMESH_SUBMIT_GPUS_PER_NODE": "mi300x:8",
        "SLURMMESH_SUBMIT_SPARES": "2",
        "SLURMMESH_SUBMIT_CHDIR": "run",
        "SLURMMESH_SUBMIT_WAIT": "No",
        "SLURMMESH_SUBMIT_EXCLUSIVE": "1",
        "SLURMMESH_SUBMIT_SETUP": "module load rocm\n\necho 'a b'\n",
        "SLURMMESH_SUBMIT_ENV": "A=1=2\nFROM_HERE\nB=",
    }
    loaded = user.load()
    assert loaded.settings == Settings(user.home / "jobs", stop_grace_s=2.5)
    assert {key: each.value for key, each in loaded.submit.items()} == {
        "gpus_per_node": "mi300x:8",
        "spares": 2,
        "chdir": "run",
        "wait": False,
        "exclusive": True,
        "setup": ("module load rocm", "echo 'a b'"),
        "env": {"A": "1=2", "FROM_HERE": None, "B": ""},
    }


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("false", False), ('"mcs"', "mcs"), ("1", "1")]
)
def test_an_option_with_or_without_a_value(user, text: str, value: object) -> None:
    user.write("user", f"submit.exclusive = {text}")
    assert user.load().submit["exclusive"].value == value


def test_lists_are_replaced_and_tables_are_merged(user) -> None:
    user.write("site", 'submit.setup = ["a", "b"]\n[submit.env]\nA = "1"\nB = "1"')
    user.write("project", 'submit.setup = ["c"]\nsubmit.env = ["B=2", "HERE"]')
    loaded = user.load()
    assert loaded.submit["setup"].value == ("c",)
    assert loaded.submit["env"].value == {"A": "1", "B": "2", "HERE": None}
    user.write("project", "submit.setup = []")
    assert user.load().submit["setup"].value == ()


def test_a_bare_name_of_a_template_is_no_path(user) -> None:
    user.write("user", 'submit.template = "mi300"')
    assert user.load().submit["template"].value == "mi300"


# ------------------------------------------------------------------ which files


def test_the_nearest_project_counts(user) -> None:
    user.write("project", 'interface = "far"')
    (user.folder / "slurmmesh.toml").write_text('interface = "near"')
    assert user.load().settings.interface == "near"
    (user.folder / "slurmmesh.toml").write_text("")
    assert user.load().settings.interface == ""


def test_the_users_file_may_be_elsewhere(user) -> None:
    user.write("user", 'interface = "home"')
    other = user.root / "xdg"
    (other / "slurmmesh").mkdir(parents=True)
    (other / "slurmmesh" / "config.toml").write_text('interface = "xdg"')
    user.environ["XDG_CONFIG_HOME"] = "not/absolute"
    assert user.load().settings.interface == "home"
    user.environ["XDG_CONFIG_HOME"] = str(other)
    assert user.load().settings.interface == "xdg"


def test_a_project_named_by_config_is_read_once(user) -> None:
    user.write("project", 'interface = "ib0"')
    loaded = user.load(config_file="../slurmmesh.toml")
    assert [place.kind for place in loaded.places] == ["user", "config"]
    assert loaded.values["interface"].origin.kind == "config"


def test_a_config_file_in_the_home_folder(user) -> None:
    (user.home / "x.toml").write_text('interface = "ib0"')
    assert user.load(config_file="~/x.toml").settings.interface == "ib0"


def test_windows_line_ends_and_byte_order_marks_do_no_harm(user) -> None:
    user.write("user", b'\xef\xbb\xbf# text\r\ninterface = "ib0"\r\n[submit]\r\nspares = 1\r\n')
    loaded = user.load()
    assert loaded.settings.interface == "ib0"
    assert loaded.submit["spares"].origin.line == 4


# ------------------------------------------------------------------ profiles

PROFILES = """
[profiles.big]
interface = "ib0"
slurm_timeout_s = 60
[profiles.big.submit]
partition = "big"
spares = 2
"""


def test_a_profile_is_defined_in_one_file_and_refined_in_another(user) -> None:
    user.write("site", PROFILES)
    user.write("project", 'interface = "eth0"\n[profiles.big]\nsubmit.partition = "mine"')
    loaded = user.load(profile="big")
    assert loaded.settings.interface == "ib0"  # a profile ranks over all files
    assert loaded.settings.slurm_timeout_s == 60
    assert {key: each.value for key, each in loaded.submit.items()} == {
        "partition": "mine",
        "spares": 2,
    }
    assert loaded.profiles == ("big",)
    assert user.load().settings.interface == "eth0"


def test_who_chooses_the_profile(user) -> None:
    names = ("site", "user", "project", "config", "variable", "flag")
    profiles = "".join(f'[profiles.{name}]\ninterface = "{name}"\n' for name in names)
    user.write("site", f'profile = "site"\n{profiles}')
    assert user.load().settings.interface == "site"
    for kind in FILES[1:3]:
        user.write(kind, f'profile = "{kind}"')
        assert user.load().settings.interface == kind
    user.write("config", 'profile = "config"')
    config = {"config_file": str(user.config_file)}
    loaded = user.load(**config)
    assert loaded.settings.interface == "config"
    assert str(loaded.profile.origin) == f"{user.config_file}:1"
    user.environ["SLURMMESH_PROFILE"] = "variable"
    assert user.load(**config).settings.interface == "variable"
    loaded = user.load(**config, profile="flag")
    assert loaded.settings.interface == "flag"
    assert str(loaded.profile.origin) == "--profile"


# ------------------------------------------------------------------ rooms and jobs


def test_a_room_reads_settings_and_leaves_submit_alone(user, monkeypatch) -> None:
    monkeypatch.chdir(user.folder)
    user.write("user", 'interface = "ib0"\n[submit]\nof_a_later_version = 1')
    user.environ["SLURMMESH_OF_A_LATER_VERSION"] = "1"
    assert load_settings(user.environ).interface == "ib0"
    assert user.load(strict=False).submit == {}


seconds = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
names = st.text(st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1)


@given(st.builds(Settings, st.builds(Path, st.just("/"), names), seconds, seconds, seconds,
                 st.text("abc0123").map(str.strip)))  # fmt: skip
def test_a_job_has_the_settings_of_its_submit(settings: Settings) -> None:
    settings = dataclasses.replace(settings, job_root=Path(os.path.normpath(settings.job_root)))
    environ = settings.as_environ()
    empty = {key for key in SETTINGS if getattr(settings, key) == ""}
    assert set(environ) == {f"SLURMMESH_{key.upper()}" for key in SETTINGS.keys() - empty}
    assert load_settings({**environ, "SLURMMESH_JOB_FOLDER": "/x"}) == settings


def test_in_a_job_no_file_is_read(user, monkeypatch) -> None:
    monkeypatch.chdir(user.folder)
    user.write("user", 'interface = "ib0"')
    user.write("project", "no TOML")
    user.environ |= {"SLURMMESH_JOB_FOLDER": "/x", "SLURMMESH_PROFILE": "gone"}
    assert load_settings(user.environ).interface == ""
    assert load_settings(user.environ | {"SLURMMESH_INTERFACE": "ib1"}).interface == "ib1"


def test_a_submit_from_within_a_job_knows_the_variables_of_the_job(user) -> None:
    user.environ |= dict.fromkeys(("SLURMMESH_JOB_FOLDER", "SLURMMESH_STEP_TAG"), "/x")
    user.write("user", "submit.spares = 1")
    assert user.load().submit["spares"].value == 1


def test_a_job_folder_given_by_variable_needs_no_working_folder(user, monkeypatch) -> None:
    gone = user.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    environ = user.environ | {"SLURMMESH_JOB_ROOT": "/jobs"}
    assert load_settings(environ).job_root == Path("/jobs")
    assert load_settings({**environ, "SLURMMESH_JOB_FOLDER": "/x"}).job_root == Path("/jobs")
    assert load_layers(environ).places[-1].kind == "user"


def test_loading_is_light() -> None:
    code = (
        "import sys, slurmmesh.config as c; c.load_settings({'HOME': '/nowhere'}); "
        "print({'tomllib', 'difflib', 'tomli'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"

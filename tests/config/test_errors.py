"""Each thing that cannot be is refused, with where it stands and what to do."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from slurmmesh.config import files, load_settings
from slurmmesh.errors import ConfigError

SETTINGS = (
    "job_root, slurm_timeout_s, slurm_patience_s, stop_grace_s, interface, log_max_mb, log_keep"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # names
        ("\njob_rot = 'x'", ":2: there is no setting 'job_rot': did you mean job_root?"),
        ("colour = 1", f":1: there is no setting 'colour': there are {SETTINGS}"),
        ("sumbit.spares = 1", "no setting 'sumbit': did you mean submit?"),
        ("spares = 1", "'spares': it is an option of submit: put it under [submit]"),
        ("[profiles.p]\nspares = 1", ":2 (profile p): there is no setting 'spares': it is an "
         "option of submit: put it under [profiles.p.submit]"),
        ("[profiles.p]\nprofile = 'q'", "'profile': it stands at the top of a file"),
        ("[profiles.p.profiles.q]", "'profiles': it stands at the top of a file"),
        ("[submit]\nparttion = 'x'", ":2: no option 'parttion' of submit can stand here: did you "
         "mean partition?"),
        ("[submit]\ncolour = 'x'", "'colour' of submit can stand here: slurmmesh submit --help"),
        ("[submit]\ninterface = 'x'", "it is a setting: put it above this table"),
        ("job_root = 'a'\njob-root = 'b'", ":2: job-root and job_root are the same"),
        ("submit.gpus-per-node = 1\nsubmit.gpus_per_node = 1", "gpus_per_node and gpus-per-node"),
        # settings
        ("job_root = ''", "job_root = '' is empty: give a folder"),
        ("job_root = 1", "job_root = 1 is a number: write text, in quotes"),
        ("job_root = '~nobody-of-this-name/x'", "~nobody-of-this-name, and no such home folder"),
        ('job_root = "a\\u0000b"', "has a NUL character"),
        ("stop_grace_s = '5'", "stop_grace_s = '5' is text: write a number, without quotes"),
        ("stop_grace_s = true", "stop_grace_s is true or false: write a number"),
        ("stop_grace_s = []", "stop_grace_s is a list: write a number"),
        ("stop_grace_s = 0", "stop_grace_s = 0 is no number of seconds over 0"),
        ("stop_grace_s = -1.5", "is no number of seconds over 0"),
        ("stop_grace_s = nan", "is no number of seconds over 0"),
        ("stop_grace_s = inf", "is no number of seconds over 0"),
        ("log_max_mb = 0", "log_max_mb = 0 is no number of MiB over 0"),
        ("log_keep = -1", "log_keep = -1 is no whole number of at least 0"),
        ("log_keep = 1.5", "is no whole number of at least 0"),
        ("log_keep = inf", "is no whole number of at least 0"),
        (f"stop_grace_s = 1{'0' * 400}", "is no number of seconds over 0"),
        ("interface = '10.8.0.0/ib0'", "interface = '10.8.0.0/ib0' is no network"),
        ("interface = { a = 1 }", "interface is a table: write text"),
        ("interface = 2024-01-01", "interface is a date or a time: write text"),
        # options
        ("submit.partition = ''", "partition = '' is empty: give a value, or leave it out"),
        ("submit.partition = 'bad'", ":1: --partition 'bad' is bad"),
        ("submit.partition = true", "partition has true or false where a text belongs"),
        ("submit.partition = 01:30:00", "partition has a date or a time where a text belongs, "
         "which stands in quotes"),
        ("submit.partition = ['a']", "partition has a list where a text belongs"),
        ("submit.partition = inf", "partition = inf is not finite"),
        ('submit.partition = "a\\u0000"', "has a NUL character"),
        ("submit.spares = '2'", "spares = '2' is text: write a whole number, without quotes"),
        ("submit.spares = 2.0", "spares = 2.0 is a number: write a whole number"),
        ("submit.spares = true", "spares is true or false: write a whole number"),
        ("submit.wait = 'true'", "wait = 'true' is text: write true or false, without quotes"),
        ("submit.wait = 1", "wait = 1 is a number: write true or false"),
        ("submit.setup = 'x'", 'setup = \'x\' is text: write a list, such as ["..."]'),
        ("submit.setup = ['']", "setup is empty"),
        ("submit.setup = ['x', 'bad']", "--partition 'bad' is bad"),
        ("submit.setup = [['x']]", "setup has a list where a text belongs"),
        ("submit.env = 'A=1'", "env = 'A=1' is text: write a table, such as { NAME"),
        ("submit.env = { 'A B' = '1' }", "env has 'A B' for the name of a variable"),
        ("submit.env = ['=1']", "env has '' for the name of a variable"),
        ("submit.env = { A = true }", "env has true or false where a text belongs"),
        ("submit.chdir = '~nobody-of-this-name'", "no such home folder is known"),
        # shapes
        ("submit = 1", ":1: submit is a number: write a table, [submit]"),
        ("profiles = 1", "profiles is a number: write a table, [profiles]"),
        ("profiles.p = 1", "p is a number: write a table, [profiles.p]"),
        ("[[submit]]\nspares = 1", "submit is a list: write a table, [submit]"),
        ("profile = 1", ":1: profile is the name of one, in quotes"),
        ("profile = ''", ":1: profile is the name of one, in quotes"),
        # no TOML
        ("a = 1\nb = 'x", ":2: it is no TOML: "),
        ("a = 1\na = 2", ":2: it is no TOML: "),
        ("a = [", ": it is no TOML: "),
        ("a = 1\0", ":1: it is no TOML: "),
        (f"a = {'9' * 5000}", ": it is no TOML: "),
        ("a = " + "[" * 100_000, ": it is no TOML: "),
        (b"a = 1\nb = '\xff'", ":2: it is no text in UTF-8"),
        ("#" * (1 << 20) + "#", " has more than 1 MiB"),
    ],
)  # fmt: skip
def test_what_a_file_cannot_say(user, text: str | bytes, said: str) -> None:
    path = user.write("user", text)
    with pytest.raises(ConfigError, match=re.escape(said)) as caught:
        user.load()
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("JOB_ROOT", "", "SLURMMESH_JOB_ROOT='' is empty"),
        ("JOB_ROOT", "~nobody-of-this-name/x", "no such home folder is known"),
        ("STOP_GRACE_S", "soon", "SLURMMESH_STOP_GRACE_S='soon' is no number of seconds"),
        ("INTERFACE", "10.8.0.0/ib0", "is no network"),
        ("SUBMIT_PARTITION", "", "SLURMMESH_SUBMIT_PARTITION='' is empty"),
        ("SUBMIT_PARTITION", "bad", "SLURMMESH_SUBMIT_PARTITION: --partition 'bad' is bad"),
        ("SUBMIT_SPARES", "two", "SLURMMESH_SUBMIT_SPARES='two' is no whole number"),
        ("SUBMIT_SPARES", "9" * 5000, "is no whole number"),
        ("SUBMIT_WAIT", "maybe", "is neither true nor false: give 1 or 0"),
        ("SUBMIT_WAIT", "", "is neither true nor false"),
        ("SUBMIT_SETUP", "good\nbad", "--partition 'bad' is bad"),
        ("SUBMIT_ENV", "A=1\n2=3", "has '2' for the name of a variable"),
        ("JOB_ROTO", "x", "SLURMMESH_JOB_ROTO is set, but there is no such setting: did you mean "
         "SLURMMESH_JOB_ROOT?"),
        ("PARTITION", "x", "did you mean SLURMMESH_SUBMIT_PARTITION?"),
        ("SUBMIT_GPU_PER_NODE", "x", "did you mean SLURMMESH_SUBMIT_GPUS_PER_NODE?"),
        ("COLOUR", "x", "no such setting: unset it; slurmmesh config shows"),
        ("SITE_CONFIG", "gone.toml", "SLURMMESH_SITE_CONFIG 'gone.toml': there is no such file"),
        ("PROFILE", "p", "SLURMMESH_PROFILE: there is no profile 'p': no settings file has any"),
    ],
)  # fmt: skip
def test_what_a_variable_cannot_say(user, name: str, value: str, said: str) -> None:
    user.environ[f"SLURMMESH_{name}"] = value
    with pytest.raises(ConfigError, match=re.escape(said)):
        user.load()


@pytest.mark.parametrize("name", ["GPU_PLATFORM", "GPU_LIBRARY", "CCL_LIBRARY"])
def test_variables_of_the_bridge_are_known(user, name: str) -> None:
    before = user.load()
    user.environ[f"SLURMMESH_{name}"] = "none"
    assert user.load() == before


@pytest.mark.parametrize("name", ["", "gone.toml", "~nobody-of-this-name/x.toml"])
def test_a_config_file_that_is_not_there(user, name: str) -> None:
    with pytest.raises(ConfigError, match=f"^--config {name!r}"):
        user.load(config_file=name)


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ("smal", "--profile: there is no profile 'smal': did you mean small? (there are big, "),
        ("colour", "--profile: there is no profile 'colour': there are big, small"),
        ("", "--profile: there is no profile '': there are big, small"),
    ],
)
def test_a_profile_that_is_not_there(user, chosen: str, said: str) -> None:
    user.write("site", "[profiles.big]")
    user.write("user", "[profiles.small]")
    with pytest.raises(ConfigError, match=re.escape(said)):
        user.load(profile=chosen)


def test_a_file_that_chooses_a_profile_that_is_not_there(user) -> None:
    path = user.write("user", "\nprofile = 'p'")
    with pytest.raises(ConfigError, match=f"^{path}:2: there is no profile 'p'"):
        user.load()


def test_profiles_not_in_use_are_checked_as_well(user) -> None:
    user.write("site", "[profiles.p]\nstop_grace_s = 0")
    with pytest.raises(ConfigError, match=re.escape(":2 (profile p): stop_grace_s = 0 is no")):
        user.load()


# ------------------------------------------------------------------ files


def test_a_file_that_everybody_may_write(user) -> None:
    path = user.write("user", "")
    path.chmod(0o666)
    with pytest.raises(ConfigError, match=re.escape(f"chmod o-w '{path}'")):
        user.load()
    path.chmod(0o664)
    user.load()


def test_what_is_no_file(user) -> None:
    user.project_file.mkdir()
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        user.load()
    user.project_file.rmdir()
    os.mkfifo(user.project_file)
    with pytest.raises(ConfigError, match="is no file"):
        user.load()


def test_a_link_that_leads_nowhere(user) -> None:
    user.project_file.symlink_to("gone")
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        user.load()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
@pytest.mark.parametrize("owner_of_folder", [0, 12345])
def test_a_project_file_of_somebody_else(user, owner_of_folder: int) -> None:
    """As in /tmp, or in the folder of a colleague."""
    path = user.write("project", "interface = 'ib0'")
    os.chown(path, 12345, -1)
    os.chown(path.parent, owner_of_folder, -1)
    with pytest.raises(ConfigError, match="belongs to user 12345") as error:
        user.load()
    assert f"if you trust it, give --config {path}; " in str(error.value)
    assert user.load(config_file=str(path)).settings.interface == "ib0"
    (user.folder / "slurmmesh.toml").write_text("")  # the advice of the message
    assert user.load().settings.interface == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_link_that_somebody_else_made_to_ones_own_file(user) -> None:
    target = user.root / "of-another-project.toml"
    target.write_text("interface = 'ib0'")
    path = user.write("project", "")
    path.unlink()
    path.symlink_to(target)
    assert user.load().settings.interface == "ib0"
    os.chown(path, 12345, -1, follow_symlinks=False)
    with pytest.raises(ConfigError, match="belongs to user 12345"):
        user.load()


def test_nobody_without_a_home_has_a_file_of_settings(user, monkeypatch) -> None:
    def nobody(uid: int) -> None:
        raise KeyError(uid)

    # A double: this process has a user, whose entry cannot be taken away for a test.
    monkeypatch.setattr("pwd.getpwuid", nobody)
    del user.environ["HOME"]
    assert [place.kind for place in user.load().places] == ["project"]
    user.environ["SLURMMESH_JOB_ROOT"] = "~/jobs"
    with pytest.raises(ConfigError, match="begins with ~, and no such home folder is known"):
        user.load()


def test_a_working_folder_that_is_gone(user, monkeypatch) -> None:
    gone: Path = user.root / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(ConfigError, match="the current folder no longer exists"):
        load_settings(user.environ)


def test_where_a_sites_file_is_looked_for(user) -> None:
    del user.environ["SLURMMESH_SITE_CONFIG"]
    assert user.load().places[0].path == files.SITE_FILE == "/etc/slurmmesh/config.toml"

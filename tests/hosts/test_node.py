"""What a host makes its own on its node."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from slurmmesh.errors import SetupError
from slurmmesh.hosts.node import at_home
from slurmmesh.slurm.environment import for_submit


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_variables_get_private_folders_that_go_with_the_host(temp: Path) -> None:
    environ = {"SLURMMESH_NODE_FOLDERS": "A_CACHE, B_CACHE  C_CACHE", "B_CACHE": "mine"}
    with at_home(environ):
        folder = Path(environ["SLURMMESH_NODE_FOLDER"])
        assert folder.parent == temp
        assert environ["B_CACHE"] == "mine"
        for name in ("A_CACHE", "C_CACHE"):
            path = Path(environ[name])
            assert path.parent == folder
            assert stat.S_IMODE(path.stat().st_mode) == 0o700
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "A_CACHE" / "db.sqlite").write_text("")
    assert os.listdir(temp) == []


def test_two_hosts_on_a_node_do_not_share(temp: Path) -> None:
    one, two = ({"SLURMMESH_NODE_FOLDERS": "A"} for _ in range(2))
    with at_home(one):
        with at_home(two):
            assert one["A"] != two["A"]
        assert Path(one["A"]).is_dir()


@pytest.mark.parametrize("environ", [{}, {"SLURMMESH_NODE_FOLDERS": "A", "A": ""}])
def test_nothing_is_made_where_nothing_is_wanted(temp: Path, environ: dict[str, str]) -> None:
    before = dict(environ)
    with at_home(environ):
        assert environ == before
        assert os.listdir(temp) == []


def test_a_node_without_room_does_without(
    temp: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(temp / "gone"))
    environ = {"SLURMMESH_NODE_FOLDERS": "A"}
    with at_home(environ):
        assert environ == {"SLURMMESH_NODE_FOLDERS": "A"}
    assert "no folder on this node for A" in capsys.readouterr().err


def test_what_is_no_variable_is_refused(temp: Path) -> None:
    with (
        pytest.raises(SetupError, match="'A=B' is no name of a variable"),
        at_home({"SLURMMESH_NODE_FOLDERS": "A=B"}),
    ):
        raise AssertionError("it went on")
    assert os.listdir(temp) == []


@pytest.mark.parametrize(("ids", "left"), [("1310,1271", "1271"), ("1310", "1310"), ("", "")])
def test_of_slingshots_network_ids_the_jobs_is_taken(ids: str, left: str) -> None:
    environ = {"SLINGSHOT_VNIS": ids}
    with at_home(environ):
        assert environ == {"SLINGSHOT_VNIS": left}


def test_a_job_submitted_from_a_host_gets_folders_of_its_own() -> None:
    environ = {"SLURM_JOB_ID": "1", "SLURMMESH_NODE_FOLDERS": "A B", "B": "/tmp/mine"}
    with at_home(environ):
        assert for_submit(environ) == {"SLURMMESH_NODE_FOLDERS": "A B", "B": "/tmp/mine"}

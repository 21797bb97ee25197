"""The console command only hands on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from slurmmesh import __version__
from slurmmesh.cli import main


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"slurmmesh {__version__}\n"


@pytest.mark.parametrize(
    ("words", "told"), [([], "which command?"), (["fly"], "there is no command 'fly'")]
)
def test_what_is_no_command(
    words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize("command", ["submit", "lab", "report"])
def test_each_command_tells_its_own_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([command, "--help"])
    assert ended.value.code == 0
    assert "usage: " in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "submit" in capsys.readouterr().out


def test_submit_through_it(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    assert main(["submit", "--dry-run", "train.py"]) == 0
    assert capfdbinary.readouterr().out.startswith(b"#!/bin/bash\n")


def test_its_start_loads_nothing_it_does_not_need(tmp_path: Path) -> None:
    code = (
        "import sys, slurmmesh.cli as c; c.main(['--version']);"
        "print([m for m in ('jinja2', 'rich', 'submitit', 'cryptography') if m in sys.modules])"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"

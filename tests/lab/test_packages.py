from __future__ import annotations

from pathlib import Path

import pytest

from slurmmesh.errors import LabError, MissingDependencyError
from slurmmesh.lab.packages import find_programs, needed_programs, search_path, slurm_version
from slurmmesh.lab.spec import LabSpec

SLURM = (
    "apt-get install -y --no-install-recommends slurm-wlm slurmctld slurmd slurm-client munge "
    "slurm-wlm-basic-plugins"
)


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (LabSpec(), SLURM),
        (LabSpec(accounting=True), f"{SLURM} slurmdbd mariadb-server"),
        (LabSpec(netns=True), f"{SLURM} iproute2"),
    ],
)
def test_missing_programs_come_with_the_line_that_installs_them(
    spec: LabSpec, line: str, tmp_path: Path
) -> None:
    with pytest.raises(MissingDependencyError) as caught:
        find_programs(spec, path=str(tmp_path))
    assert str(caught.value).splitlines()[-1].strip() == line
    assert "munged" in str(caught.value)
    assert caught.value.exit_code == 6


def test_only_what_is_missing_is_named(tmp_path: Path) -> None:
    for name in needed_programs(LabSpec()):
        if name != "munged":
            (tmp_path / name).write_text("#!/bin/sh\n")
            (tmp_path / name).chmod(0o755)
    with pytest.raises(MissingDependencyError, match="a lab needs munged, not found"):
        find_programs(LabSpec(), path=str(tmp_path))


def test_sbin_is_searched_after_the_callers_path() -> None:
    path = search_path({"PATH": "/home/ada/bin:/usr/sbin"}).split(":")
    assert path[:2] == ["/home/ada/bin", "/usr/sbin"]
    assert path.count("/usr/sbin") == 1
    assert "/sbin" in path


def test_a_slurm_that_does_not_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(LabError, match="did not run"):
        slurm_version(str(tmp_path / "slurmctld"))

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slurmmesh.errors import LabError
from slurmmesh.lab.packages import parse_version
from slurmmesh.lab.render import Site, cgroup_conf, gres_conf, slurm_conf, slurmdbd_conf
from slurmmesh.lab.spec import LabSpec, Layout

LAYOUT = Layout(Path("/tmp/lab"))


def site(nodes: int, dbd_port: int | None = None) -> Site:
    return Site(
        user="ada",
        controller="127.0.0.1",
        slurmctld_port=10001,
        node_addresses=("127.0.0.1",) * nodes,
        node_hostnames=("localhost",) * nodes,
        node_ports=tuple(range(20001, 20001 + nodes)),
        dbd_port=dbd_port,
    )


def settings_of(text: str) -> dict[str, str]:
    lines = [line for line in text.splitlines() if not line.startswith(("NodeName", "Partition"))]
    return dict(line.split("=", 1) for line in lines)


@given(nodes=st.integers(1, 512), cpus=st.integers(1, 65535), gpus=st.integers(0, 128))
def test_each_node_has_a_line_a_port_and_its_cores(nodes: int, cpus: int, gpus: int) -> None:
    spec = LabSpec(nodes=nodes, cpus=cpus, gpus=gpus)
    text = slurm_conf(spec, LAYOUT, site(nodes))
    lines = [line for line in text.splitlines() if line.startswith("NodeName=")]
    fields = [dict(word.split("=", 1) for word in line.split()) for line in lines]
    assert [line["NodeName"] for line in fields] == list(spec.node_names)
    assert len({line["Port"] for line in fields}) == nodes
    for line in fields:
        cores = int(line["SocketsPerBoard"]) * int(line["CoresPerSocket"])
        assert cores == int(line["CPUs"]) == cpus
        assert line.get("Gres") == (f"gpu:mi300x:{gpus}" if gpus else None)


def test_own_settings_replace_the_labs_whatever_their_case() -> None:
    spec = LabSpec(settings={"killwait": "30", "MaxStepCount": "10"})
    text = slurm_conf(spec, LAYOUT, site(4))
    assert settings_of(text)["KillWait"] == "30"
    assert settings_of(text)["MaxStepCount"] == "10"
    assert text.lower().count("killwait=") == 1


def test_accounting_is_named_only_where_it_is() -> None:
    spec = LabSpec(accounting=True)
    assert "AccountingStoragePort=10002" in slurm_conf(spec, LAYOUT, site(4, dbd_port=10002))
    assert "AccountingStorage" not in slurm_conf(LabSpec(), LAYOUT, site(4))
    assert settings_of(slurmdbd_conf(LAYOUT, site(4, dbd_port=10002)))["DbdPort"] == "10002"


@pytest.mark.parametrize(
    ("gpu_type", "flag"), [("mi300x", "amd_gpu_env"), ("h100", "nvidia_gpu_env")]
)
def test_devices_have_their_vendors_visibility_variable(gpu_type: str, flag: str) -> None:
    text = gres_conf(LabSpec(nodes=2, gpu_type=gpu_type), LAYOUT)
    assert f"NodeName=node[1-2] Name=gpu Type={gpu_type} File=/tmp/lab/run/gpu[0-7]" in text
    assert f"Flags={flag}" in text


def test_one_node_one_gpu_and_none() -> None:
    text = gres_conf(LabSpec(nodes=1, gpus=1), LAYOUT)
    assert "NodeName=node1 Name=gpu Type=mi300x File=/tmp/lab/run/gpu0 " in text
    assert gres_conf(LabSpec(gpus=0), LAYOUT) == ""
    assert "GresTypes" not in slurm_conf(LabSpec(gpus=0), LAYOUT, site(4))


@pytest.mark.parametrize(
    ("said", "version", "plugin"),
    [
        ("slurm-wlm 21.08.5", (21, 8), ""),
        ("slurm-wlm 22.05.8\n", (22, 5), "CgroupPlugin=cgroup/v1\n"),
        ("slurm 23.02.3", (23, 2), "CgroupPlugin=disabled\n"),
        ("slurm-wlm 24.11.5", (24, 11), "CgroupPlugin=disabled\n"),
    ],
)
def test_cgroups_are_off_as_far_as_the_version_can(
    said: str, version: tuple[int, int], plugin: str
) -> None:
    assert parse_version(said) == version
    assert cgroup_conf(version) == plugin


def test_a_program_that_tells_no_version_is_quoted() -> None:
    with pytest.raises(LabError, match="'slurmctld: not today'"):
        parse_version("slurmctld: not today\n")

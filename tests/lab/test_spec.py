from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from slurmmesh.errors import UsageError
from slurmmesh.lab.folder import MAX_ROOT_BYTES
from slurmmesh.lab.spec import MAX_NETNS_NODES, MAX_NODES, LabSpec, Layout


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ({"nodes": 0}, "nodes"),
        ({"nodes": -1}, "nodes"),
        ({"nodes": MAX_NODES + 1}, "nodes"),
        ({"nodes": 2.0}, "nodes"),
        ({"nodes": True}, "nodes"),
        ({"nodes": MAX_NETNS_NODES + 1, "netns": True}, "nodes"),
        ({"cpus": 0}, "cpus"),
        ({"gpus": -1}, "gpus"),
        ({"gpu_type": "mi 300x"}, "gpu_type"),
        ({"gpu_type": ""}, "gpu_type"),
        ({"slurmd_timeout_s": 0}, "slurmd_timeout_s"),
        ({"start_timeout_s": 0}, "start_timeout_s"),
        ({"settings": {"Max Jobs": "1"}}, "Max Jobs"),
        ({"settings": {"KillWait": "1\nSlurmUser=root"}}, "KillWait"),
        ({"settings": {"KillWait": "1 # 2"}}, "KillWait"),
    ],
)
def test_what_no_lab_can_be_built_from_is_refused(arguments: dict[str, Any], names: str) -> None:
    with pytest.raises(UsageError, match=names):
        LabSpec(**arguments)


def test_a_spec_survives_json() -> None:
    spec = LabSpec(nodes=3, settings={"KillWait": "5"}, netns=True)
    assert LabSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec


def test_nodes_are_named_from_one() -> None:
    spec = LabSpec(nodes=3)
    assert spec.node_names == ("node1", "node2", "node3")
    assert spec.node_index("node3") == 2
    with pytest.raises(UsageError, match=r"node4.*node1 \.\. node3"):
        spec.node_index("node4")


def test_every_socket_fits_below_the_longest_root() -> None:
    layout = Layout(Path("/" + "r" * (MAX_ROOT_BYTES - 1)))
    step = layout.spool / "node512" / "node512_4294967295.4294967295.0"
    for path in (layout.munge_socket, layout.database_socket, layout.control_socket, step):
        assert len(bytes(path)) <= 107
